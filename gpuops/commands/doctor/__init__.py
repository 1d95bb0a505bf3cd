"""`gpuops doctor`: finds what would keep a run from going well, before it starts, each with what to do about it.

- `doctor`: which places are examined for this computer, a provider, a cluster.
- `examine`: runs checkups on places in parallel, and has their facts judged.
- `facts`: what a checkup says about one place, as types.
- `checks_host`, `checks_gpu`: judge one place; `checks_differences`: compares several. All pure.
- `checks_computer`: checks of this computer: ssh, keys, key agent, gpuops' own folder.
- `report`: findings, rules, and the report.
"""
