# What `cmake --install` puts under the prefix, and the target `uninstall` that takes it away again. bin/ and share/ keep their places to each other:
# the program finds its maps from where it lies itself, so an installation may be moved.
# Man pages and completions are installed by the code that generates them, pipeline/.
set(RESHARD_DOC_DIR share/doc/reshard)
install(TARGETS reshard RUNTIME DESTINATION bin)
install(DIRECTORY configs/models configs/jobs DESTINATION share/reshard FILES_MATCHING PATTERN *.toml)
install(DIRECTORY slurm/ DESTINATION share/reshard/slurm USE_SOURCE_PERMISSIONS FILES_MATCHING PATTERN *.sbatch PATTERN *.sh PATTERN *.toml)
install(DIRECTORY tests/data/moe-tp2-pp2-ep2 tests/data/moe-hf-reference DESTINATION share/reshard/sample)
install(PROGRAMS packaging/try_sample.sh DESTINATION share/reshard)
install(FILES README.md CHANGELOG.md DESTINATION ${RESHARD_DOC_DIR})
install(DIRECTORY docs DESTINATION ${RESHARD_DOC_DIR} FILES_MATCHING PATTERN *.md PATTERN *.png PATTERN *.svg PATTERN *.html PATTERN *.py)
install(FILES LICENSE packaging/debian/copyright DESTINATION ${RESHARD_DOC_DIR})

configure_file(cmake/uninstall.cmake.in uninstall.cmake @ONLY)
add_custom_target(uninstall COMMAND ${CMAKE_COMMAND} -P ${PROJECT_BINARY_DIR}/uninstall.cmake VERBATIM)
