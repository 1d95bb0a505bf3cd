"""How a run ended: on each node, in one sentence, and what to do about it. Pure.

node_report      how a run ended on one node, typed
run_outcome      which results are home, and whether the machines may be destroyed
verdict          one sentence, one thing to do, one exit code
failure_cause    which process died first, and of what
suggested_fixes  what helps against a program's last words
"""
