"""What the fake lists: types with their prices of May 2026, regions, images."""

from __future__ import annotations

from typing import Any

TYPES = {
    "cpu_4x_general": ("4x CPU", "N/A", 20, 0),
    "gpu_1x_a10": ("1x A10 (24 GB PCIe)", "A10 (24 GB PCIe)", 129, 1),
    "gpu_1x_gh200": ("1x GH200 (96 GB)", "GH200 (96 GB)", 229, 1),
    "gpu_1x_h100_pcie": ("1x H100 (80 GB PCIe)", "H100 (80 GB PCIe)", 329, 1),
    "gpu_1x_h100_sxm5": ("1x H100 (80 GB SXM5)", "H100 (80 GB SXM5)", 429, 1),
    "gpu_1x_rtx6000": ("1x RTX 6000 (24 GB)", "RTX 6000 (24 GB)", 69, 1),
    "gpu_2x_a6000": ("2x RTX A6000 (48 GB)", "RTX A6000 (48 GB)", 218, 2),
    "gpu_8x_h100_sxm5": ("8x H100 (80 GB SXM5)", "H100 (80 GB SXM5)", 3192, 8),
    "gpu_8x_v100": ("8x Tesla V100 (16 GB)", "Tesla V100 (16 GB)", 632, 8),
}
REGIONS = {"us-west-1": "California, USA", "us-south-1": "Texas, USA", "us-east-1": "Virginia, USA"}
STOCK = {
    "cpu_4x_general": ["us-east-1"],
    "gpu_1x_a10": ["us-west-1", "us-east-1"],
    "gpu_1x_h100_pcie": ["us-west-1"],
    "gpu_1x_gh200": ["us-east-1"],
    "gpu_2x_a6000": ["us-south-1"],
    "gpu_8x_h100_sxm5": ["us-west-1"],
    "gpu_8x_v100": ["us-south-1"],
}
"""Where each is listed as free."""
FAMILIES = ("lambda-stack-22-04", "lambda-stack-24-04", "ubuntu-24-04")


def region_view(name: str) -> dict[str, Any]:
    return {"name": name, "description": REGIONS[name]}


def type_view(name: str) -> dict[str, Any]:
    description, gpu, cents, gpus = TYPES[name]
    specs = {"vcpus": 26 * max(gpus, 1), "memory_gib": 200, "storage_gib": 1400, "gpus": gpus}
    return {
        "name": name, "description": description, "gpu_description": gpu, "price_cents_per_hour": cents, "specs": specs,
    }  # fmt: skip


def image_views() -> list[dict[str, Any]]:
    at = "2026-05-01T00:00:00Z"
    return [
        {
            "id": f"{number:08x}-096d-4cba-9aa2-f9bb7727639d", "created_time": at, "updated_time": at, "name": family,
            "description": family, "family": family, "version": "1.0", "architecture": "x86_64",
            "region": region_view(region),
        }
        for number, (family, region) in enumerate((family, region) for family in FAMILIES for region in REGIONS)
    ]  # fmt: skip
