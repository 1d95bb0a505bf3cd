"""A process that has torch and forks ranks which need not import it: seconds each, on a busy machine.

One request per line of stdin, one answer per line of stdout:
{"start": [{"argv", "cwd", "env", "out", "err"}, …]} -> [pid, …]
{"wait": pid} -> exit code or -signal
"""

# ruff: noqa: E402

from __future__ import annotations

import gc
import json
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[3] / "train"))
gc.disable()  # until all is there: none of it is garbage

import ddp.trainer  # and with it all the others  # noqa: F401
import torch
import torch._dynamo  # the first optimizer does, in seconds
import torch.distributed.checkpoint.state_dict  # gpt.py does
import torch.distributed.fsdp  # and it does
import torch.utils.flop_counter


def serve() -> dict[str, Any]:
    """Answer until there are no more requests; in a rank, what it is to be."""
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer: Any = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
        else:
            answer = []
            for rank in request["start"]:
                if not (pid := os.fork()):
                    return dict(rank)
                answer.append(pid)
        print(json.dumps(answer), flush=True)
    sys.exit(0)


def become(rank: dict[str, Any]) -> None:
    """As if the program had been started by itself."""
    for number, mode, path in ((0, os.O_RDONLY, os.devnull), (1, None, rank["out"]), (2, None, rank["err"])):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND if mode is None else mode)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(rank["cwd"])
    os.environ.update(rank["env"])
    sys.argv = rank["argv"]
    sys.path[0] = os.path.dirname(rank["argv"][0])
    code = 0
    try:
        runpy.run_path(rank["argv"][0], run_name="__main__")
    except SystemExit as left:
        code = int(left.code or 0)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # to take torch down in good order takes longer than to train; the real launches do it


torch.set_num_threads(1)
gc.freeze()
gc.enable()
become(serve())
