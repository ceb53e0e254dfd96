# In a source tree of reshard, with Spack 1.0 or later:
#   spack repo add packaging/spack/spack_repo/reshard
#   spack dev-build --source-path "$PWD" reshard@0.2.0 +cuda cuda_arch=90
# There is no archive to download: the recipe builds the tree that it is given.
from spack_repo.builtin.build_systems.cmake import CMakePackage
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class Reshard(CMakePackage, CudaPackage):
    """Rewrites large-model checkpoints from one parallel layout and format into another, as one MPI job with bounded memory."""

    license("Apache-2.0")

    version("0.2.0")

    variant("nccl", default=False, when="+cuda", description="Exchange from GPU to GPU (run.transport = nccl)")
    variant("hdf5", default=True, description="Read and write HDF5 checkpoints")

    depends_on("cxx", type="build")
    depends_on("c", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type="build")

    # Any MPI-3 library may do; the tests run with Open MPI 4.1.
    depends_on("mpi@3:")
    depends_on("hdf5@1.10: +mpi", when="+hdf5")
    depends_on("fmt@9:10")
    depends_on("spdlog@1.10:")
    depends_on("tomlplusplus@3.3:3")
    depends_on("cli11@2.1:2")
    depends_on("simdjson@3")
    depends_on("xxhash@0.8:")
    depends_on("isa-l@2.30:", when="target=x86_64:")
    depends_on("libseccomp@2.5:", when="+hdf5 platform=linux")
    depends_on("liburing@2:", when="platform=linux")
    depends_on("openssl@3:")
    depends_on("libyaml@0.2.5:")
    depends_on("zlib-api")
    depends_on("googletest@1.12: +gmock", type="test")
    depends_on("cuda@12:", when="+cuda")
    depends_on("nccl@2.19.1:", when="+nccl")

    # C++20 with constexpr algorithms and designated initialisers.
    conflicts("%gcc@:11", msg="reshard is C++20: GCC 12 or later")
    conflicts("cuda_arch=none", when="+cuda", msg="say for which GPUs: cuda_arch=90")

    def cmake_args(self):
        args = [
            self.define("RESHARD_WERROR", False),
            self.define("RESHARD_BENCHMARKS", False),
            self.define("RESHARD_TESTS", self.run_tests),
            self.define("RESHARD_CUDA", "ON" if self.spec.satisfies("+cuda") else "OFF"),
            self.define("CMAKE_DISABLE_FIND_PACKAGE_HDF5", not self.spec.satisfies("+hdf5")),
        ]
        if self.spec.satisfies("+cuda"):
            args.append(self.define("CMAKE_CUDA_ARCHITECTURES", list(self.spec.variants["cuda_arch"].value)))
        if self.spec.satisfies("+nccl"):
            args.append(self.define("NCCL_ROOT", self.spec["nccl"].prefix))
        return args

    def setup_run_environment(self, env):
        if self.spec.satisfies("+nccl"):
            env.set("RESHARD_NCCL_LIBRARY", self.spec["nccl"].prefix.lib.join("libnccl.so.2"))

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_installed(self):
        Executable(self.prefix.bin.reshard)("--version")
