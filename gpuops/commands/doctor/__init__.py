"""`gpuops doctor`: finds what would keep a run from going well, before it starts, each with what to do about it.

- `doctor`: runs checkups on the places asked for, and has their facts judged.
- `checks_host`, `checks_gpu`: judge one place; `differences`: compares several. All pure.
- `computer`: checks of this computer: ssh, keys, key agent, gpuops' own folder.
- `report`: facts of a checkup, rules, findings, and the report.
"""
