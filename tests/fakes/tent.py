"""The example provider of tests/system/packaging/plugin as if its wheel were installed, without building one."""

from __future__ import annotations

from pathlib import Path

PLUGIN = Path(__file__).parents[1] / "system" / "packaging" / "plugin"


def pitch(site: Path) -> list[str]:
    """Write the metadata of its wheel; what `sys.path` needs for it to be found."""
    folder = site / "gpuops_tent-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: gpuops-tent\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[gpuops.provisioners]\ntent = gpuops_tent:TentProvisioner\n")
    return [str(site), str(PLUGIN)]
