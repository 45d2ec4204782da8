"""The versions that a report names."""

import numpy as np

from ffn.report import versions


def test_only_installed_packages_are_listed(monkeypatch):
    monkeypatch.setattr(versions, "PACKAGES", ("numpy", "no-such-package"))
    found = versions.package_versions()
    assert list(found) == ["Python", "numpy"] and found["numpy"] == np.__version__
