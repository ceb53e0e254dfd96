// The layers of docs/architecture.md hold: every #include of core/, stages/ and pipeline/ is read,
// and any edge that the tables below do not allow is a failure.

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace {

namespace fs = std::filesystem;

/// One #include: `name` as written, in quotes (ours) or in angle brackets (everything else).
struct Include {
  std::string file;  ///< from the repository's root
  int line = 0;
  std::string name;
  bool ours = false;
};

/// "base" for core/base/error.hpp, "stages/read" for stages/read/catalog.hpp, "pipeline/run" for
/// pipeline/run/run.hpp; "" for another place.
std::string library_of(std::string_view path) {
  std::vector<std::string> parts;
  for (auto const& part : fs::path(path)) parts.push_back(part.string());
  if (parts.size() >= 2 && parts[0] == "pipeline")
    return parts.size() == 2 ? "pipeline" : "pipeline/" + parts[1];
  if (parts.size() >= 3 && parts[0] == "stages") return "stages/" + parts[1];
  if (parts.size() >= 3 && parts[0] == "core") return parts[1];
  return "";
}

std::set<std::string> const core = {"base", "io",         "layout",  "mapping", "quant",
                                    "plan", "containers", "formats", "device",  "transport"};

/// The libraries that each library of core may include; its own files always.
std::map<std::string, std::set<std::string>> const allowed_libraries = {
    {"base", {}},
    {"io", {"base"}},
    {"layout", {"base"}},
    {"mapping", {"base", "layout"}},
    {"quant", {"base"}},
    {"plan", {"base", "layout", "mapping", "quant"}},
    {"containers", {"base", "layout"}},
    {"formats", {"base", "io", "layout", "mapping", "plan", "containers"}},
    {"device", {"base", "quant"}},
    {"transport", {"base", "device"}},
};

/// The rooms that each room of pipeline/ may include. All of them may include the program's
/// version; what stands in no room includes any.
std::map<std::string, std::set<std::string>> const allowed_rooms = {
    {"messages", {}},
    {"job", {}},
    {"journal", {"job"}},
    {"records", {"job"}},
    {"publication", {"job", "journal", "records"}},
    {"verify", {"job", "records"}},
    {"extract", {"job", "publication", "records", "verify"}},
    {"run", {"job", "journal", "messages", "publication", "records", "verify"}},
    {"view", {"job", "run", "verify"}},
    {"cli", {"job", "messages"}},
    {"describe", {"cli", "job", "records", "verify"}},
    {"nightly", {"describe", "job", "publication", "records"}},
    {"commands",
     {"cli", "describe", "extract", "job", "messages", "nightly", "run", "verify", "view"}},
};

constexpr std::string_view program = "pipeline/";

bool room_may_include(std::string const& from, std::string const& to) {
  if (from == "pipeline" || to == "pipeline") return true;
  auto const found = allowed_rooms.find(from.substr(program.size()));
  return found != allowed_rooms.end() && found->second.contains(to.substr(program.size()));
}

bool is_program(std::string const& library) {
  return library == "pipeline" || library.starts_with(program);
}

bool may_include(std::string const& from, std::string const& to) {
  if (from == to) return true;
  if (auto const found = allowed_libraries.find(from); found != allowed_libraries.end())
    return found->second.contains(to);
  if (from == "stages/stream")
    return core.contains(to) || to == "stages/read" || to == "stages/redistribute" ||
           to == "stages/write";
  if (from.starts_with("stages/")) return core.contains(to);  // never another stage
  if (is_program(to)) return is_program(from) && room_may_include(from, to);
  return is_program(from) && (core.contains(to) || to.starts_with("stages/"));
}

/// A foreign library: how its headers begin, and the beginnings of the paths that may include them.
struct Foreign {
  std::string_view headers;
  std::vector<std::string_view> places;
};

std::vector<Foreign> const foreign_libraries = {
    {"fmt/", {"core/", "stages/", "pipeline/"}},
    {"spdlog/", {"core/base/", "pipeline/"}},
    {"toml++/",
     {"core/mapping/maps/map_file.", "core/mapping/maps/map_reader.", "pipeline/job/job_spec."}},
    {"CLI/", {"pipeline/"}},
    {"simdjson.h", {"core/base/text/json.", "core/containers/safetensors/"}},
    {"zlib.h", {"core/base/"}},
    {"isa-l", {"core/base/"}},
    {"xxhash.h", {"core/base/"}},
    {"xxh_x86dispatch.h", {"core/base/"}},
    {"yaml.h", {"core/base/text/yaml."}},
    {"openssl/", {"core/base/"}},
    {"mpi.h", {"core/transport/", "core/containers/hdf5/"}},
    {"hdf5", {"core/containers/hdf5/"}},
    {"H5", {"core/containers/hdf5/"}},
    {"seccomp.h", {"core/containers/hdf5/"}},
    {"liburing.h", {"core/io/uring_mover."}},
    {"cuda", {"core/device/cuda/"}},
    {"cufile", {"core/device/cuda/"}},
    {"nvtx", {"core/device/cuda/"}},
    {"nccl", {"core/transport/nccl/"}},
    {"dlfcn.h", {"core/transport/nccl/"}},
    {"malloc.h", {"core/base/heap"}},
    {"immintrin.h", {"core/quant/"}},
};

/// Headers of the operating system: not for the pure libraries.
constexpr std::array<std::string_view, 11> system_prefixes = {
    "sys/",      "linux/",   "fcntl.h", "unistd.h",   "sched.h", "dirent.h",
    "pthread.h", "signal.h", "poll.h",  "execinfo.h", "spawn.h"};

bool is_pure(std::string const& library) {
  return library == "layout" || library == "mapping" || library == "quant" || library == "plan";
}

bool is_standard(std::string const& name) { return name.find_first_of("./+") == std::string::npos; }

std::optional<std::string> problem_of_foreign(Include const& include) {
  if (is_standard(include.name)) return std::nullopt;
  for (std::string_view const prefix : system_prefixes)
    if (include.name.starts_with(prefix)) {
      if (!is_pure(library_of(include.file))) return std::nullopt;
      return "layout, mapping, quant and plan are pure: they do not ask the operating system";
    }
  for (Foreign const& foreign : foreign_libraries)
    if (include.name.starts_with(foreign.headers)) {
      for (std::string_view const place : foreign.places)
        if (include.file.starts_with(place)) return std::nullopt;
      return "this header has its place elsewhere: see foreign_libraries in tests/layers_test.cpp";
    }
  return "an unknown foreign header: if it is wanted, say where it may stand in foreign_libraries";
}

/// What is wrong with an #include, or nothing.
std::optional<std::string> problem_of(Include const& include) {
  if (!include.ours) return problem_of_foreign(include);
  std::string const from = library_of(include.file);
  std::string const to = library_of(include.name);
  if (to.empty())
    return "write the path from the repository's root: core/…, stages/… or pipeline/…";
  if (!may_include(from, to)) return from + " may not include " + to;
  return std::nullopt;
}

/// The includes of one text. A line counts when its first character but blanks is '#', so commented
/// ones do not.
std::vector<Include> includes_in(std::istream& text, std::string const& file) {
  std::vector<Include> out;
  std::string line;
  for (int number = 1; std::getline(text, line); ++number) {
    std::size_t at = line.find_first_not_of(" \t");
    if (at == std::string::npos || line[at] != '#') continue;
    at = line.find_first_not_of(" \t", at + 1);
    if (at == std::string::npos || line.compare(at, 7, "include") != 0) continue;
    std::size_t const open = line.find_first_of("\"<", at);
    if (open == std::string::npos) continue;
    std::size_t const close = line.find(line[open] == '"' ? '"' : '>', open + 1);
    if (close == std::string::npos) continue;
    out.push_back({.file = file,
                   .line = number,
                   .name = line.substr(open + 1, close - open - 1),
                   .ours = line[open] == '"'});
  }
  return out;
}

std::vector<Include> all_includes() {
  std::vector<Include> out;
  fs::path const root = RESHARD_SOURCE_DIR;
  std::set<std::string> const endings = {".hpp", ".cpp", ".h", ".cu", ".cuh"};
  for (char const* folder : {"core", "stages", "pipeline"})
    for (auto const& entry : fs::recursive_directory_iterator(root / folder)) {
      if (!entry.is_regular_file() || !endings.contains(entry.path().extension().string()))
        continue;
      std::ifstream text(entry.path());
      auto const found = includes_in(text, entry.path().lexically_relative(root).generic_string());
      out.insert(out.end(), found.begin(), found.end());
    }
  return out;
}

TEST(Layers, EveryIncludeIsAllowed) {
  auto const includes = all_includes();
  EXPECT_GT(includes.size(), 50U) << "the sources were not found";
  for (Include const& include : includes) {
    auto const problem = problem_of(include);
    EXPECT_FALSE(problem) << include.file << ":" << include.line << ": #include of " << include.name
                          << ": " << problem.value_or("");
  }
}

TEST(Layers, EveryIncludeOfOursNamesAFile) {
  for (Include const& include : all_includes()) {
    bool const there =
        !include.ours || fs::is_regular_file(fs::path(RESHARD_SOURCE_DIR) / include.name);
    EXPECT_TRUE(there) << include.file << ":" << include.line << ": no file " << include.name;
  }
}

TEST(Layers, EveryFileBelongsToALibrary) {
  for (Include const& include : all_includes()) {
    std::string const library = library_of(include.file);
    EXPECT_TRUE(core.contains(library) || library.starts_with("stages/") || is_program(library))
        << include.file;
  }
}

/// So every header with a source is known to need nothing in front of it; cmake/header_check.cmake
/// compiles the others alone.
TEST(Layers, ASourceIncludesItsOwnHeaderFirst) {
  std::map<std::string, std::string> first;
  for (Include const& include : all_includes()) first.emplace(include.file, include.name);
  int sources = 0;
  for (auto const& [file, name] : first) {
    fs::path const header = fs::path(file).replace_extension(".hpp");
    if (!file.ends_with(".cpp") || !fs::is_regular_file(fs::path(RESHARD_SOURCE_DIR) / header))
      continue;
    ++sources;
    EXPECT_EQ(name, header.generic_string()) << file << " does not include its own header first";
  }
  EXPECT_GT(sources, 50) << "the sources were not found";
}

/// Everything that a file includes, itself or through others; foreign headers too.
std::set<std::string> reached_from(std::string const& file,
                                   std::map<std::string, std::vector<std::string>> const& edges) {
  std::set<std::string> seen = {file};
  std::vector<std::string> open = {file};
  while (!open.empty()) {
    auto const next = edges.find(open.back());
    open.pop_back();
    if (next == edges.end()) continue;
    for (std::string const& name : next->second)
      if (seen.insert(name).second) open.push_back(name);
  }
  return seen;
}

TEST(Layers, PureLibrariesReachNeitherMpiNorCudaNorHdf5) {
  std::map<std::string, std::vector<std::string>> edges;
  for (Include const& include : all_includes()) edges[include.file].push_back(include.name);
  for (auto const& [file, names] : edges) {
    if (!is_pure(library_of(file))) continue;
    for (std::string const& name : reached_from(file, edges))
      for (std::string_view const forbidden : {"mpi.h", "cuda", "nccl", "hdf5", "H5"})
        EXPECT_FALSE(name.starts_with(forbidden)) << file << " reaches " << name;
  }
}

/// An edge that must be refused, or must not.
struct Edge {
  std::string file;
  std::string name;
  bool ours;
  bool allowed;
};

TEST(Layers, TheRulesTellForbiddenEdgesFromAllowedOnes) {
  std::vector<Edge> const edges = {
      {.file = "core/layout/mesh.hpp",
       .name = "core/base/error.hpp",
       .ours = true,
       .allowed = true},
      {.file = "core/base/text/text.hpp",
       .name = "core/layout/mesh.hpp",
       .ours = true,
       .allowed = false},
      {.file = "core/formats/megatron/folder.cpp",
       .name = "core/containers/torch/pickle/pickle.hpp",
       .ours = true,
       .allowed = true},
      {.file = "core/formats/megatron/folder.cpp",
       .name = "core/mapping/model.hpp",
       .ours = true,
       .allowed = true},
      {.file = "core/formats/megatron/folder.cpp",
       .name = "core/transport/comm.hpp",
       .ours = true,
       .allowed = false},
      {.file = "core/plan/verify.cpp",
       .name = "core/quant/scheme.hpp",
       .ours = true,
       .allowed = true},
      {.file = "core/quant/scheme.cpp",
       .name = "core/layout/mesh.hpp",
       .ours = true,
       .allowed = false},
      {.file = "core/quant/scheme.cpp", .name = "unistd.h", .ours = false, .allowed = false},
      {.file = "core/plan/verify.cpp",
       .name = "core/containers/file_tensor.hpp",
       .ours = true,
       .allowed = false},
      {.file = "core/device/copy.cpp",
       .name = "core/layout/pieces/piece.hpp",
       .ours = true,
       .allowed = false},
      {.file = "stages/read/x.cpp", .name = "stages/write/x.hpp", .ours = true, .allowed = false},
      {.file = "stages/read/x.cpp",
       .name = "core/transport/comm.hpp",
       .ours = true,
       .allowed = true},
      {.file = "stages/read/x.cpp",
       .name = "pipeline/job/job_spec.hpp",
       .ours = true,
       .allowed = false},
      {.file = "stages/stream/x.cpp", .name = "stages/write/x.hpp", .ours = true, .allowed = true},
      {.file = "stages/write/x.cpp", .name = "stages/stream/x.hpp", .ours = true, .allowed = false},
      {.file = "pipeline/run/run.cpp", .name = "stages/write/x.hpp", .ours = true, .allowed = true},
      {.file = "pipeline/run/run.cpp",
       .name = "pipeline/job/job_spec.hpp",
       .ours = true,
       .allowed = true},
      {.file = "pipeline/job/job_spec.cpp",
       .name = "pipeline/run/run.hpp",
       .ours = true,
       .allowed = false},
      {.file = "core/containers/dcp/x.cpp",
       .name = "core/formats/megatron/x.hpp",
       .ours = true,
       .allowed = false},
      {.file = "core/layout/mesh.cpp", .name = "mesh.hpp", .ours = true, .allowed = false},
      {.file = "core/plan/verify.cpp", .name = "mpi.h", .ours = false, .allowed = false},
      {.file = "stages/read/x.cpp", .name = "mpi.h", .ours = false, .allowed = false},
      {.file = "core/transport/comm.hpp", .name = "mpi.h", .ours = false, .allowed = true},
      {.file = "core/mapping/model.cpp", .name = "toml++/toml.h", .ours = false, .allowed = false},
      {.file = "core/mapping/maps/map_file.cpp",
       .name = "toml++/toml.h",
       .ours = false,
       .allowed = true},
      {.file = "core/layout/mesh.cpp", .name = "unistd.h", .ours = false, .allowed = false},
      {.file = "core/base/files/file.cpp", .name = "sys/uio.h", .ours = false, .allowed = true},
      {.file = "core/base/files/file.cpp",
       .name = "boost/any.hpp",
       .ours = false,
       .allowed = false},
      {.file = "core/device/copy.cpp", .name = "cuda_runtime.h", .ours = false, .allowed = false},
      {.file = "core/transport/nccl/nccl_library.cpp",
       .name = "nccl.h",
       .ours = false,
       .allowed = true},
      {.file = "core/transport/mpi_transport.cpp",
       .name = "nccl.h",
       .ours = false,
       .allowed = false},
      {.file = "core/device/cuda/cuda_device.cpp",
       .name = "dlfcn.h",
       .ours = false,
       .allowed = false},
      {.file = "core/plan/verify.cpp", .name = "vector", .ours = false, .allowed = true},
  };
  for (Edge const& edge : edges) {
    Include const include = {.file = edge.file, .line = 1, .name = edge.name, .ours = edge.ours};
    EXPECT_EQ(!problem_of(include).has_value(), edge.allowed)
        << edge.file << " includes " << edge.name;
  }
}

TEST(Layers, IncludesAreFoundInText) {
  std::istringstream text(
      "#include <mpi.h>\n  #  include \"core/base/text/text.hpp\"  // why\n// #include <cuda.h>\n#define include\n#include MACRO\n");
  auto const found = includes_in(text, "x");
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].name, "mpi.h");
  EXPECT_FALSE(found[0].ours);
  EXPECT_EQ(found[1].name, "core/base/text/text.hpp");
  EXPECT_EQ(found[1].line, 2);
}

}  // namespace
