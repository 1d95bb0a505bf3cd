"""`python -m gpuops` is `gpuops`."""

from gpuops.cli import main

if __name__ == "__main__":
    main()
