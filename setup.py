"""What pyproject.toml cannot say: the wheel carries the files that lie beside the packages, where cluster/installation.py looks, and the
compiled part of the reader, which is no module of one Python but a library of C, and may be missing where there is no compiler."""

import zlib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
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
    "examples/ddp/train/train.py",
    "LICENSE",
)
SOURCE = "data_prep/reader/pixels.c"
PIXELS = Extension(
    "data_prep.reader.libpixels",
    [SOURCE],
    define_macros=[("SLIPWAY_SOURCE", str(zlib.crc32(Path(SOURCE).read_bytes())))],
    # It runs in containers with any C library: it asks for no library by name, and for no function beyond memcpy and memset.
    extra_compile_args=["-std=c99", "-O3", "-fno-stack-protector", "-U_FORTIFY_SOURCE"],
    extra_link_args=["-nostdlib", "-lgcc"],
    optional=True,
)


class BuildPy(build_py):
    """A build that adds CARRIED to the packages, unless the installation is editable and runs from the checkout."""

    def run(self) -> None:
        """Build the packages, then bring the files beside them in."""
        super().run()
        for pattern in () if self.editable_mode else CARRIED:
            for file in Path().glob(pattern):
                target = Path(self.build_lib, "workflow", "installed", file)
                self.mkpath(str(target.parent))
                self.copy_file(str(file), str(target))


class BuildExt(build_ext):
    """The library lies beside pixels.py, whatever Python it was compiled with."""

    def get_ext_filename(self, fullname: str) -> str:
        """Return the path of the library below the packages."""
        return str(Path(*fullname.split(".")).with_suffix(".so"))


class BdistWheel(bdist_wheel):
    """A wheel for every Python on one kind of machine. The index takes no `linux_*`, and the library needs no version of a C library."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tag of the wheel."""
        platform = super().get_tag()[2]
        return "py3", "none", f"manylinux_2_17_{platform.removeprefix('linux_')}" if platform.startswith("linux_") else platform


setup(cmdclass={"bdist_wheel": BdistWheel, "build_ext": BuildExt, "build_py": BuildPy}, ext_modules=[PIXELS])
