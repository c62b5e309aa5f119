"""Only the compiled kernel, which setuptools cannot be told of in pyproject.toml yet; everything else is there."""

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    try:  # where the package wheel still had it
        from wheel.bdist_wheel import bdist_wheel
    except ImportError:  # no wheel is made
        bdist_wheel = None

# Sums may be taken in any order, as precision_tool/lib/native/kernel.c says; nothing else of -ffast-math.
FLAGS = [
    "-O3",
    "-std=gnu11",
    "-fassociative-math",
    "-fno-signed-zeros",
    "-fno-trapping-math",
    "-fno-math-errno",
    "-ffinite-math-only",
]


class BuildKernel(build_ext):
    """The kernel is a library without any Python in it, so that one file serves every version of Python."""

    def get_ext_filename(self, fullname):
        return fullname.replace(".", "/") + ".compiled.so"  # no name of a module, which would be imported


COMMANDS = {"build_ext": BuildKernel}

if bdist_wheel is not None:

    class KernelWheel(bdist_wheel):
        """A wheel for every Python, of this kind of machine."""

        def get_tag(self):
            return ("py3", "none", super().get_tag()[2])

    COMMANDS["bdist_wheel"] = KernelWheel

setup(
    cmdclass=COMMANDS,
    ext_modules=[
        Extension(
            "precision_tool.lib.native.kernel",
            [f"precision_tool/lib/native/{name}.c" for name in ("kernel", "values", "integers", "elements", "layouts")],
            depends=["precision_tool/lib/native/lanes.h"],
            extra_compile_args=FLAGS,
            libraries=["m"],
            optional=True,  # without a compiler numpy does the work
        )
    ],
)
