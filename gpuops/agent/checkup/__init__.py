"""Raw facts about a machine for `gpuops doctor`; nothing is judged here."""
