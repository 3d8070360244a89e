"""What pyproject.toml cannot say: the wheel carries the files that lie beside the packages, where cluster/installation.py looks."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

CARRIED = (
    "Snakefile",
    "profiles/*/profile.v9+.yaml",
    "workflow/rules/*.smk",
    "config/study.yaml",
    "config/accuracy.yaml",
    "config/schemas/*.json",
    "config/sites/example-*.yaml",
    "config/templates/*.yaml",
)


class BuildPy(build_py):
    """An editable installation runs from the checkout, and needs none of them."""

    def run(self) -> None:
        """Build the packages, then bring the files beside them in."""
        super().run()
        for pattern in () if self.editable_mode else CARRIED:
            for file in Path().glob(pattern):
                target = Path(self.build_lib, "workflow", "installed", file)
                self.mkpath(str(target.parent))
                self.copy_file(str(file), str(target))


setup(cmdclass={"build_py": BuildPy})
