# The Debian package: `cmake --preset package && cmake --build --preset package && cpack --preset package`. A build with CUDA makes reshard-cuda, which
# takes the place of reshard: the program runs on machines without a GPU too, but is built for the GPUs of one toolkit.
set(RESHARD_PACKAGE_MAINTAINER "reshard maintainers <root@localhost>" CACHE STRING "who answers for the package: Name <mail>")
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME reshard)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "rewrites large-model checkpoints into other parallel layouts and formats")
set(CPACK_PACKAGE_DESCRIPTION "One MPI job reads a checkpoint of Megatron, PyTorch, Hugging Face or HDF5
in the layout it was saved in and writes it in the layout and format that
the next program needs, with bounded memory and without Python, and proves
the result.")
set(CPACK_PACKAGE_CONTACT ${RESHARD_PACKAGE_MAINTAINER})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/cmake/package_compress.cmake)
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS openmpi-bin) # mpirun; the libraries are found by dpkg-shlibdeps
if(RESHARD_HAS_CUDA)
  set(CPACK_PACKAGE_NAME reshard-cuda)
  set(CPACK_DEBIAN_PACKAGE_PROVIDES "reshard (= ${PROJECT_VERSION})")
  set(CPACK_DEBIAN_PACKAGE_SUGGESTS libnccl2)
  set(other reshard)
else()
  set(other reshard-cuda)
endif()
set(CPACK_DEBIAN_PACKAGE_CONFLICTS ${other})
set(CPACK_DEBIAN_PACKAGE_REPLACES ${other})
include(CPack)
