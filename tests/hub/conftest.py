"""Small data sets in the hub's own layout: parquet files with image structs, and a README.md that names the
configs."""

import io
from pathlib import Path

import numpy as np
import pytest
import yaml
from datasets import Dataset, Features, Value
from datasets import Image as ImageFeature
from PIL import Image


def picture(seed, fmt="PNG", size=(20, 14)):
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, fmt)
    return buffer.getvalue()


def cell(content):
    return None if content is None else {"bytes": content, "path": None}


@pytest.fixture
def hub_directory(tmp_path):
    """Write {config: {split: (columns, number of parquet files)}} as a hub repository; returns its directory."""

    def write(name, configs):
        root = Path(tmp_path) / name
        described = []
        for config, splits in configs.items():
            files = []
            for split, columns in splits.items():
                folder = root / config
                folder.mkdir(parents=True, exist_ok=True)
                features = {}
                for key, values in columns.items():
                    if key == "image":
                        features[key] = ImageFeature()
                    else:
                        first = next((v for v in values if v is not None), "")
                        features[key] = Value("int64" if isinstance(first, int) else "string")
                data = Dataset.from_dict(columns, features=Features(features))
                half = len(data) // 2
                for part, rows in enumerate((range(half), range(half, len(data)))):
                    if len(rows) or part == 1:
                        data.select(rows).to_parquet(folder / f"{split}-{part:05d}-of-00002.parquet")
                files.append({"split": split, "path": f"{config}/{split}-*"})
            described.append({"config_name": config, "data_files": files})
        if list(configs) == ["default"]:
            described[0]["default"] = True
        (root / "README.md").write_text("---\n" + yaml.safe_dump({"configs": described}) + "---\n# a data set\n")
        return str(root)

    return write


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
