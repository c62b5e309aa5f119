"""The compiled kernel, and the example of settings in a wheel; everything else is in pyproject.toml."""

import os

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    try:  # where the package wheel still had it
        from wheel.bdist_wheel import bdist_wheel
    except ImportError:  # no wheel is made
        bdist_wheel = None

# Sums may be taken in any order, as precision_tool/lib/io/native/kernel.c says; nothing else of -ffast-math.
FLAGS = [
    "-O3",
    "-std=gnu11",
    "-fassociative-math",
    "-fno-signed-zeros",
    "-fno-trapping-math",
    "-fno-math-errno",
    "-ffinite-math-only",
]


CONFIG = "precision_tool/lib/config/config.py"
KERNEL = "precision_tool.lib.io.native.kernel"
SBOM = "precision_tool.cdx.json"  # in a source distribution that scripts/release made


class BuildWithExample(build_py):
    """What is built has the settings a second time: as the example, next to the file that users edit."""

    def run(self):
        super().run()
        if not getattr(self, "editable_mode", False):
            example = os.path.join(self.build_lib, os.path.dirname(CONFIG), "config.example.py")
            self.copy_file(CONFIG, example)


class BuildKernel(build_ext):
    """The kernel is a library without any Python in it, so that one file serves every version of Python."""

    def get_ext_filename(self, fullname):
        return fullname.replace(".", "/") + ".compiled.so"  # no name of a module, which would be imported


COMMANDS = {"build_ext": BuildKernel, "build_py": BuildWithExample}

if bdist_wheel is not None:

    class KernelWheel(bdist_wheel):
        """A wheel for every Python, of this kind of machine; of every kind where no kernel was built."""

        def run(self):
            self.run_command("build")
            folder = self.get_finalized_command("build").build_lib
            kernel = self.get_finalized_command("build_ext").get_ext_filename(KERNEL)
            if not os.path.exists(os.path.join(folder, kernel)):
                self.distribution.ext_modules = []
                self.root_is_pure = True
            super().run()

        def write_wheelfile(self, wheelfile_base, *more, **options):
            super().write_wheelfile(wheelfile_base, *more, **options)
            if os.path.exists(SBOM):
                self.mkpath(os.path.join(wheelfile_base, "sboms"))
                self.copy_file(SBOM, os.path.join(wheelfile_base, "sboms"))

        def get_tag(self):
            return ("py3", "none", "any" if self.root_is_pure else super().get_tag()[2])

    COMMANDS["bdist_wheel"] = KernelWheel

setup(
    cmdclass=COMMANDS,
    ext_modules=[
        Extension(
            KERNEL,
            [
                f"precision_tool/lib/io/native/{name}.c"
                for name in ("kernel", "values", "integers", "elements", "layouts")
            ],
            depends=["precision_tool/lib/io/native/lanes.h"],
            extra_compile_args=FLAGS,
            libraries=["m"],
            optional=True,  # without a compiler numpy does the work
        )
    ],
)
