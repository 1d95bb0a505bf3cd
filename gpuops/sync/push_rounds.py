"""What one push sends to all nodes: through chains where that spares this computer's line, else to each from here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial

from gpuops.core.format import amount, one_line, plural
from gpuops.core.parallel import on_each
from gpuops.core.reporting import Progress
from gpuops.core.timings import Whose
from gpuops.sync.chain_links import Chains
from gpuops.sync.push_chain import Chain, Outcome, choose
from gpuops.sync.push_transports import Delivery, Stream, choose_transport, find_changed
from gpuops.sync.uplink import Uplink
from gpuops.transport.rsync import RsyncFailed

MAX_CHAIN_ROUNDS = 2
"""Nodes that a chain has left behind through no fault of their own form one more; then each gets the rest from here."""
MAX_SHOWN_CHARS = 200


def deliver(deliveries: Sequence[Delivery], nodes: int, uplink: Uplink, progress: Progress) -> dict[str, str]:
    """Bring each of the nodes (of `nodes` in all) what it needs. Returns by node which way it came.

    Files that change meanwhile are the caller's to find. Raises UsageError for a file that cannot be read, and the
    error of the first node that failed, once all have ended.
    """
    rounds, chain_rounds = _Rounds(nodes, uplink, progress), MAX_CHAIN_ROUNDS
    while deliveries:
        outcomes = rounds.send(deliveries, choose(deliveries, uplink) if chain_rounds else [])
        chain_rounds = max(0, chain_rounds - 1)
        if refused := next((one.refusal for one in outcomes if one.refusal), None):
            raise refused
        for one in outcomes:
            if one.left:
                rounds.say(f"{one.delivery.client.label}: {one.why}; it gets the rest")
        deliveries = [one.left for one in outcomes if one.left]
    return rounds.ways


class _Rounds:
    """The bytes that several senders have sent, shown as one progress, and the ways that they took."""

    def __init__(self, nodes: int, uplink: Uplink, progress: Progress) -> None:
        self.ways: dict[str, str] = {}
        self._uplink, self._progress, self._nodes = uplink, progress, nodes
        self._label = ""
        self._total = self._done = 0
        self._lock = threading.Lock()

    def say(self, sentence: str) -> None:
        self._progress.say(one_line(sentence, MAX_SHOWN_CHARS))

    def send(self, deliveries: Sequence[Delivery], groups: Sequence[Sequence[Delivery]]) -> list[Outcome]:
        """Send everything at once: through chains of each of the `groups`, and from here to each node that is in none.

        Returns what the chains brought. Raises UsageError, and the error of the first node that failed.
        """
        with ExitStack() as stack:
            opened = on_each(lambda group: stack.enter_context(closing(Chains(group, self._uplink))), groups)
            chains = [chain for one in opened for chain in one.chains]
            through = {link.label: chain for chain in chains for link in chain.links}
            direct = [one for one in deliveries if one.client.label not in through]
            if not self._label:
                self._announce(deliveries, direct, chains, next((one.note for one in opened if one.note), ""))
            for label, chain in through.items():
                self._add_way(label, chain.way_of(label))
            works: list[Callable[[], list[Outcome]]] = [partial(chain.send, self._add) for chain in chains]
            works += [partial(self._send_from_here, one) for one in direct]
            return [outcome for found in on_each(lambda work: work(), works) for outcome in found]

    def _add_way(self, label: str, way: str) -> None:
        self.ways[label] = f"{self.ways[label]}, then {way}" if label in self.ways else way

    def _announce(
        self, deliveries: Sequence[Delivery], direct: Sequence[Delivery], chains: Sequence[Chain], note: str
    ) -> None:
        if note:
            self.say(f"{note}: what it gets comes from here")
        self._label = deliveries[0].client.label if self._nodes == 1 else f"{self._nodes} nodes"
        self._total = sum(chain.size for chain in chains) + sum(one.size for one in direct)
        ways = [chain.describe() for chain in chains]
        ways += [choose_transport(one, self._uplink).describe() for one in direct]
        files = plural(max(len(one.files) for one in deliveries), "file")
        words = f"sending {files} to {self._label}, {amount(self._total)}, {' and '.join(dict.fromkeys(ways))}"
        self._progress.phase(words, Whose.NETWORK)

    def _add(self, count: int) -> None:
        with self._lock:
            self._done += count
            self._progress.advance(min(self._done, self._total), self._total, self._label)

    def _send_from_here(self, delivery: Delivery) -> list[Outcome]:
        """By rsync, and as a stream where that fails."""
        label, passed = delivery.client.label, 0

        def add(count: int) -> None:
            nonlocal passed
            passed += count
            self._add(count)

        carrier = choose_transport(delivery, self._uplink)
        try:
            carrier.send(delivery, add)
        except RsyncFailed as error:
            if find_changed(delivery.folder, [file for _, file in delivery.files]):
                return []
            self._add(-passed)
            self._progress.say(f"{label}: {error}; sending as a stream")
            carrier = Stream(self._uplink)
            carrier.send(delivery, self._add)
        self._add_way(label, carrier.describe())
        return []
