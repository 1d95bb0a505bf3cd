"""How a run ended: on each node, in one sentence, and what to do about it. Pure.

node_report  how a run ended on one node, typed
judgement    which results are home, and whether the machines may be destroyed
verdict      one sentence, one thing to do, one exit code
diagnosis    which process died first, and of what
remedies     what helps against a program's last words
"""
