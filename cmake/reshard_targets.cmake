# Two functions carry the build. Their USES lines are the architecture diagram; tests/layers_test.cpp reads the #includes and agrees.

add_library(reshard_warnings INTERFACE)
# Sources that are compiled together are for those who only use the program; some warnings would be false there.
if(RESHARD_UNITY)
  target_compile_options(reshard_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-w>)
else()
  target_compile_options(reshard_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wconversion -Wsign-conversion -Wshadow>)
endif()
if(RESHARD_WERROR)
  target_compile_options(reshard_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror> $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
endif()
if(RESHARD_SANITIZE)
  target_compile_options(reshard_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${RESHARD_SANITIZE} -fno-omit-frame-pointer>)
  target_link_options(reshard_warnings INTERFACE -fsanitize=${RESHARD_SANITIZE})
  if(RESHARD_SANITIZE MATCHES undefined) # a message that nothing fails on is overlooked
    target_compile_options(reshard_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=undefined>)
  endif()
endif()

# What many sources of the program include, compiled once.
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/program_headers.cpp CONTENT "// Carries the precompiled headers of the program.\n")
add_library(reshard_program_headers OBJECT ${PROJECT_BINARY_DIR}/program_headers.cpp)
target_precompile_headers(reshard_program_headers PRIVATE <algorithm> <array> <charconv> <chrono> <filesystem> <functional> <map> <memory> <mutex> <numeric> <optional>
  <set> <span> <string> <string_view> <tuple> <unordered_map> <utility> <vector> <fmt/format.h> <fmt/ranges.h>)
target_link_libraries(reshard_program_headers PRIVATE reshard_warnings fmt::fmt)
# GCC frees the memory of what it no longer needs again and again, a tenth of its time: not before it has 1 GB.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(reshard_warnings INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:SHELL:--param ggc-min-heapsize=1000000>")
endif()
# The dev build checks the formats of messages when it compiles.
if(RESHARD_UNITY)
  if(fmt_VERSION VERSION_LESS 11)
    target_compile_definitions(reshard_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:FMT_CONSTEVAL=>)
  else()
    target_compile_definitions(reshard_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:FMT_USE_CONSTEVAL=0>)
  endif()
endif()

# Compiles the sources of a library in groups (RESHARD_UNITY): the headers are read once for each group.
function(reshard_compile_in_groups target)
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.cpp$")
  list(FILTER sources EXCLUDE REGEX "^/") # those that are made
  file(GLOB_RECURSE headers ${PROJECT_SOURCE_DIR}/core/*.hpp ${PROJECT_SOURCE_DIR}/stages/*.hpp ${PROJECT_SOURCE_DIR}/pipeline/*.hpp)
  execute_process(COMMAND awk -v most=24 -v root=${PROJECT_SOURCE_DIR}/ -f ${PROJECT_SOURCE_DIR}/cmake/unity_groups.awk ${headers} ${sources}
    WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} OUTPUT_VARIABLE lines OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  string(REPLACE "\n" ";" lines "${lines}")
  foreach(line ${lines})
    string(REPLACE " " ";" words "${line}")
    list(GET words 0 group)
    list(GET words 1 source)
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()

# reshard_add_library(name SOURCES … [USES other reshard libraries …] [LINK foreign targets …])
function(reshard_add_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;USES;LINK" ${ARGN})
  add_library(reshard_${name} STATIC ${ARG_SOURCES})
  target_include_directories(reshard_${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(reshard_${name} PRIVATE $<BUILD_INTERFACE:reshard_warnings>)
  foreach(used ${ARG_USES})
    target_link_libraries(reshard_${name} PUBLIC reshard_${used})
  endforeach()
  target_link_libraries(reshard_${name} PUBLIC ${ARG_LINK})
  target_precompile_headers(reshard_${name} REUSE_FROM reshard_program_headers)
  if(RESHARD_UNITY)
    reshard_compile_in_groups(reshard_${name})
  endif()
endfunction()

# unit_tests builds what runs without ranks, parallel_tests what has several threads or ranks: scripts/sanitize.sh needs no more.
add_custom_target(unit_tests)
add_custom_target(parallel_tests)

# Precompiled headers are of use where the same macros are defined: fmt's.
# GCC 12 sees writes past the end of strings that it joins itself; where the standard library is precompiled these false alarms are no longer hidden.
add_library(reshard_test_options INTERFACE)
target_link_libraries(reshard_test_options INTERFACE fmt::fmt)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(reshard_test_options INTERFACE -Wno-array-bounds -Wno-restrict -Wno-stringop-overflow -Wno-stringop-overread)
endif()

# What all tests include, compiled once.
function(reshard_precompile_for_tests)
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/test_headers.cpp CONTENT "// Carries the precompiled headers of the tests.\n")
  add_library(reshard_test_headers OBJECT ${CMAKE_CURRENT_BINARY_DIR}/test_headers.cpp)
  target_precompile_headers(reshard_test_headers PRIVATE <algorithm> <filesystem> <fstream> <functional> <map> <memory> <optional> <set> <sstream> <string>
    <string_view> <vector> <fmt/format.h> <fmt/ranges.h> <gtest/gtest.h>)
  target_link_libraries(reshard_test_headers PRIVATE reshard_warnings reshard_test_options fmt::fmt GTest::gtest)
endfunction()

# reshard_add_test(name SOURCES … [USES …] [LINK …] [RANKS 1 2 4]): a GoogleTest program; with RANKS it runs under mpirun, label mpi.
function(reshard_add_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;USES;LINK;RANKS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(RESHARD_SANITIZE)
    math(EXPR ARG_TIMEOUT "5 * ${ARG_TIMEOUT}")
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_definitions(${name} PRIVATE RESHARD_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  foreach(used ${ARG_USES})
    target_link_libraries(${name} PRIVATE reshard_${used})
  endforeach()
  target_link_libraries(${name} PRIVATE reshard_warnings reshard_test_options ${ARG_LINK})
  target_precompile_headers(${name} REUSE_FROM reshard_test_headers)
  if(ARG_RANKS)
    target_link_libraries(${name} PRIVATE GTest::gtest)
    add_dependencies(parallel_tests ${name})
    foreach(ranks ${ARG_RANKS})
      add_test(NAME ${name}.np${ranks} COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} --oversubscribe --bind-to none $<TARGET_FILE:${name}>)
      set_tests_properties(${name}.np${ranks} PROPERTIES LABELS "mpi;${ARG_LABELS}" PROCESSORS 2 TIMEOUT ${ARG_TIMEOUT} ENVIRONMENT
        "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;OMPI_MCA_mpi_yield_when_idle=1")
    endforeach()
  else()
    target_link_libraries(${name} PRIVATE GTest::gtest_main)
    add_dependencies(unit_tests ${name})
    if("threads" IN_LIST ARG_LABELS)
      add_dependencies(parallel_tests ${name})
    endif()
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES LABELS "unit;${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
  endif()
endfunction()
