"""Everything that a node says is converted to a shape of `gpuops.transport.schemas` here, or rejected.

Messages, documents and files of a node may be of any size, depth and content, on purpose or not. These functions return
a value of the asked shape, None, or raise the documented error: nothing else escapes. Their messages are short and
printable.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite
from typing import Any, Literal

import msgspec

from gpuops.agent.wire_format import PROTOCOL
from gpuops.core.errors import MalformedAnswer, NodeRefused
from gpuops.core.format import one_line
from gpuops.transport.program_schemas import AgentRefusal, JournalEvent, RefusalLine
from gpuops.transport.schema_types import Address, Sentence
from gpuops.transport.schemas import VERB_SHAPES, OtherHello, ResultDocument
from gpuops.transport.tar_reader import MAX_FILES
from gpuops.transport.usage_schemas import UsageLine

MAX_REASON_CHARS = 200
"""An error message quotes at most this much of what is wrong with an answer."""
MAX_SENTENCE_CHARS = 2000
"""A node's own sentence is cut to this length."""
MAX_CONTAINERS = 4 * MAX_FILES
"""Lists and objects in one document: parsed, each takes thirty times as much memory as in its line."""


def parse_message(label: str, verb: str, line: bytes) -> tuple[Literal["item", "ok", "beat"], Any]:
    """Parse one line of an agent's answer to a verb. `label` names the node in messages.

    Returns `item` or `ok` with a value of the verb's shape, or `beat`, which only says that the agent is at work.
    Raises NodeRefused for an agent's refusal, MalformedAnswer for anything that has another shape.
    """
    shapes = VERB_SHAPES[verb]
    with report_malformed(label, f"to '{verb}'"):
        match parse_json(line):
            case {"error": dict(error)}:
                raise parse_refusal(label, error)
            case {"item": {"beat": int() | float()}} if shapes.item:
                return "beat", None
            case {"item": dict(item)} if shapes.item:
                return "item", convert(item, shapes.item)
            case {"ok": {"protocol": int(other)}} if verb == "hello" and other != PROTOCOL:
                return "ok", OtherHello(other)
            case {"ok": dict(answer)}:
                return "ok", convert(answer, shapes.answer)
        raise ValueError("neither an item nor an answer")


def parse_document(label: str, subject: str, text: bytes, shape: Any) -> Any:
    """Parse the one JSON document that a program or a file consists of. `subject` names it in the message.

    Raises MalformedAnswer.
    """
    with report_malformed(label, subject):
        return convert(parse_json(text), shape)


def parse_refusal(label: str, error: Any) -> NodeRefused:
    """Convert the `error` object of an agent. Raises ValueError where it has another shape."""
    refusal: AgentRefusal = convert(error, AgentRefusal)
    return to_error(label, refusal)


def parse_refusal_line(label: str, line: str) -> NodeRefused | None:
    """Parse the last line that a program wrote to stderr; None where it is no refusal of an agent."""
    try:
        complaint: RefusalLine = convert(parse_json(line.encode(errors="replace")), RefusalLine)
    except ValueError:
        return None
    return to_error(label, complaint.error)


def to_error(label: str, refusal: AgentRefusal) -> NodeRefused:
    """The error for a refusal of an agent."""
    say = f"{label}: {refusal.say or 'refused'}"
    return NodeRefused(say, refusal.hint, refusal.kind or "refused", refusal.data)


def parse_result(document: Any) -> ResultDocument | None:
    """Check a result.json, as bytes or parsed, of a node that cannot be asked any more; None for any other shape."""
    try:
        result: ResultDocument = convert(parse_json(document) if isinstance(document, bytes) else document,
                                         ResultDocument)  # fmt: skip
    except ValueError:
        return None
    return result


def parse_event(line: bytes) -> JournalEvent | None:
    """Parse a line of a node's journal; None where it was cut off, or has another shape."""
    try:
        event: JournalEvent = convert(parse_json(line), JournalEvent)
    except ValueError:
        return None
    return event


def parse_usage(line: bytes) -> UsageLine | None:
    """Parse a line of a node's `usage.jsonl`; None where it was cut off, or has another shape."""
    try:
        usage: UsageLine = convert(parse_json(line), UsageLine)
    except ValueError:
        return None
    return usage


def parse_json(text: bytes) -> Any:
    """Parse JSON of limited size and depth. NaN and infinite numbers become None. Raises ValueError.

    The standard library parses it, since msgspec rejects the surrogates that stand for bytes of file names that are
    not UTF-8.
    """
    if len(text) > MAX_CONTAINERS and text.count(b"[") + text.count(b"{") > MAX_CONTAINERS:
        raise ValueError("too many parts")
    try:
        return json.loads(text, parse_constant=lambda _: None, parse_float=_parse_float)
    except RecursionError:
        raise ValueError("too deep") from None
    except ValueError:
        raise ValueError("no JSON") from None


def _parse_float(text: str) -> float | None:
    number = float(text)
    return number if isfinite(number) else None


def convert(value: Any, shape: Any) -> Any:
    """Convert parsed JSON to a shape; fields that the shape lacks are dropped.

    Raises ValueError, which says where the value differs.
    """
    try:
        return msgspec.convert(value, shape, dec_hook=_convert_text)
    except UnicodeEncodeError:
        raise ValueError("not UTF-8") from None
    except RecursionError:
        raise ValueError("too deep") from None
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


def _convert_text(kind: type, value: Any) -> Address | Sentence:
    """Convert to the two types that msgspec does not know. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"Expected `str`, got `{type(value).__name__}`")
    if kind is Sentence:
        return Sentence(" ".join(value[:MAX_SENTENCE_CHARS].split()))
    ipaddress.ip_address(value)
    return Address(value)


@contextmanager
def report_malformed(label: str, subject: str) -> Iterator[None]:
    """Raise MalformedAnswer, in one printable sentence, for a ValueError of the block."""
    try:
        yield
    except ValueError as error:
        raise MalformedAnswer(label, one_line(f"{subject}: {error}", MAX_REASON_CHARS)) from None
