"""Several processes that fetch one file, and that save to one path, the right way and the usual one; rounds of each.

    python files.py RANKS ROUNDS MEGABYTES APART

The file has so many MEGABYTES, and the processes come for it within APART seconds of each other.
"""

import hashlib
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
import urllib.request
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock

import torch

LINE = 20e6  # bytes per second that all downloads share
CHUNK = 1 << 16
WEIGHTS = 11_173_962  # of a ResNet-18 for CIFAR-10: 45 MB
STATISTICS = 9_600  # of its BatchNorms: in DistributedDataParallel each rank has its own
LOOKS = 0.02  # seconds between two looks of whoever wants to load what is saved


# ---- fetching ---------------------------------------------------------------------------------------------------
def serve(content, address, asked, sent):
    line = Lock()

    class Server(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.value += 1
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            for start in range(0, len(content), CHUNK):
                with line:
                    time.sleep(CHUNK / LINE)
                    sent.value += len(content[start : start + CHUNK])
                self.wfile.write(content[start : start + CHUNK])

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    address.send(server.server_address[1])
    server.serve_forever()


def fetch_everywhere(_rank, url, path, _meet):
    if not os.path.exists(path):
        urllib.request.urlretrieve(url, path)


def fetch_once(rank, url, path, meet):
    if rank == 0 and not os.path.exists(path):
        urllib.request.urlretrieve(url, path)
    meet.wait()


def fetching(rank, way, url, path, digest, wait, meet, told):
    meet.wait()
    time.sleep(wait)
    way(rank, url, path, meet)
    with open(path, "rb") as file:
        told.put(hashlib.sha256(file.read()).hexdigest() == digest)


def fetches(way, folder, ranks, rounds, megabytes, apart):
    content = random.Random(0).randbytes(int(megabytes * 1e6))
    asked, sent = multiprocessing.Value("q", 0), multiprocessing.Value("q", 0)
    there, here = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(content, here, asked, sent))
    server.start()
    url, digest = f"http://127.0.0.1:{there.recv()}/data", hashlib.sha256(content).hexdigest()
    chance, whole, seconds = random.Random(1), [], []
    for number in range(rounds):
        path = os.path.join(folder, f"{way.__name__}-{number}")
        waits = [chance.uniform(0, apart) for _ in range(ranks)]
        began = time.perf_counter()
        whole += together(fetching, ranks, lambda rank: (way, url, path, digest, waits[rank]))  # noqa: B023
        seconds.append(time.perf_counter() - began)
    server.kill()
    server.join()
    return {"requests": asked.value / rounds, "megabytes": sent.value / rounds / 1e6, "seconds": seconds,
            "read": len(whole), "not whole": whole.count(False)}  # fmt: skip


# ---- saving -----------------------------------------------------------------------------------------------------
def save_everywhere(_rank, state, path):
    torch.save(state, path)


def save_once(rank, state, path):
    if rank == 0:
        torch.save(state, path + ".part")
        os.replace(path + ".part", path)


def saving(rank, way, path, weights, meet, told):
    state = {"weights": weights, "statistics": torch.full((STATISTICS,), float(rank))}
    meet.wait()
    began = time.perf_counter()
    way(rank, state, path)
    told.put(time.perf_counter() - began)


def looking(path, over, looks, failed):
    """Load what is there, again and again."""
    while not over.is_set():
        if os.path.exists(path):
            looks.value += 1
            failed.value += not loads(path)
        time.sleep(LOOKS)


def loads(path):
    try:
        torch.load(path, weights_only=True)
    except Exception:
        return False
    return True


def sound(path):
    """Whether every checksum in it agrees, at which `torch.load` does not look."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except Exception:
        return False


def saves(way, folder, ranks, rounds, weights):
    path = os.path.join(folder, f"{way.__name__}.pt")
    over, looks, failed = multiprocessing.Event(), multiprocessing.Value("q", 0), multiprocessing.Value("q", 0)
    reader = multiprocessing.Process(target=looking, args=(path, over, looks, failed))
    reader.start()
    seconds, unsound = [], 0
    for _ in range(rounds):
        seconds.append(max(together(saving, ranks, lambda _rank: (way, path, weights))))
        unsound += not sound(path)
    over.set()
    reader.join()
    return {"seconds": seconds, "looks": looks.value, "failed": failed.value, "rounds": rounds, "unsound": unsound}


# ---- both -------------------------------------------------------------------------------------------------------
def together(work, ranks, arguments):
    """What each of so many processes tells."""
    meet, told = multiprocessing.Barrier(ranks), multiprocessing.Queue()
    given = [(rank, *arguments(rank), meet, told) for rank in range(ranks)]
    processes = [multiprocessing.Process(target=work, args=each) for each in given]
    for process in processes:
        process.start()
    answers = [told.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    return answers


def main(ranks, rounds, megabytes, apart):
    weights = torch.rand(WEIGHTS)
    with tempfile.TemporaryDirectory(prefix="gpuops-b") as folder:
        fetched = [fetches(way, folder, ranks, rounds, megabytes, apart) for way in (fetch_once, fetch_everywhere)]
        saved = [saves(way, folder, ranks, rounds, weights) for way in (save_once, save_everywhere)]
    print("TOLD", json.dumps({"fetched": fetched, "saved": saved}))


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")  # from a process that has torch already
    torch.set_num_threads(1)
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))
