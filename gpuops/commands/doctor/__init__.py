"""`gpuops doctor`: what would keep a run from going well, before it is started, each with what to do about it.

`examine` brings raw facts from a place (the agent's mode `checkup`), `judgehost` and `judgegpu` say what is wrong
with one place, `differences` what is unlike between several, `computer` what concerns the user's side alone, and
`story` asks them in order. All but `examine` and `computer` are pure.
"""
