"""A Python whose path begins here looks for garbage rarely: to import torch takes 3.1 seconds of a core, and so 1.9."""

import gc

gc.set_threshold(100_000)
