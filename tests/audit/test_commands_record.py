"""Keeping a simulated audit with the code."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from vdr.audit.commands import app
from vdr.errors import BadInput


def test_an_audit_that_was_never_made_is_said_to_be_missing_and_nothing_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import vdr.study.settings as settings

    kept = settings.repository_root() / "outputs" / "recorded" / "smoke"
    before = kept.exists()
    monkeypatch.setenv("VDR_OUTPUTS", str(tmp_path))
    found = CliRunner().invoke(app, ["record", "--profile", "smoke", "--set", "audit.seed=987654"])
    assert isinstance(found.exception, BadInput)
    assert "vdr audit reproduce" in str(found.exception)
    assert kept.exists() == before
