// A whole job gives the same files whatever engine reads and writes them.

#include <algorithm>
#include <array>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "core/io/io_engines.hpp"
#include "pipeline/run/run.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// A folder that all ranks see, made by rank 0.
class SharedFolder {
 public:
  explicit SharedFolder(Comm const& comm) : comm_(comm) {
    if (comm.rank() == 0) own_.emplace("io_engines");
    path_ = comm.broadcast(own_ ? own_->path().string() : "", 0);
  }
  ~SharedFolder() { comm_.barrier(); }
  SharedFolder(SharedFolder const&) = delete;
  SharedFolder& operator=(SharedFolder const&) = delete;
  fs::path const& path() const { return path_; }

 private:
  Comm const& comm_;
  std::optional<ScratchFolder> own_;
  fs::path path_;
};

/// One safetensors file. Rows are no multiples of anything, so nothing lies at a page.
void write_source(fs::path const& folder) {
  std::vector<std::pair<std::string, std::array<std::uint64_t, 2>>> const tensors = {
      {"a.weight", {1201, 999}},
      {"b.weight", {3, 5}},
      {"c.weight", {640, 4099}},
      {"d.bias", {1, 7}}};
  std::string header = "{";
  std::uint64_t end = 0;
  for (auto const& [name, shape] : tensors) {
    std::uint64_t const begin = end;
    end += shape[0] * shape[1] * 2;
    header += fmt::format(R"({}"{}":{{"dtype":"BF16","shape":[{},{}],"data_offsets":[{},{}]}})",
                          begin == 0 ? "" : ",", name, shape[0], shape[1], begin, end);
  }
  header += "}";
  header.append(8 - header.size() % 8, ' ');
  std::uint64_t const header_bytes = header.size();
  std::string file(reinterpret_cast<char const*>(&header_bytes), sizeof header_bytes);
  file += header;
  std::mt19937_64 random(1);
  for (std::uint64_t i = 0; i < end; ++i) file.push_back(static_cast<char>(random()));
  make_folders(folder);
  write_text_file(folder / "model.safetensors", file);
}

std::map<std::string, std::vector<std::byte>> files_in(fs::path const& folder) {
  std::map<std::string, std::vector<std::byte>> files;
  for (auto const& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file() && entry.path().filename() != "reshard.json" &&
        entry.path().filename() != "SHA256SUMS")
      files.emplace(entry.path().lexically_relative(folder).string(), bytes_of(entry.path()));
  return files;
}

RunReport run_with(std::string_view io, std::string_view more, fs::path const& source,
                   fs::path const& target) {
  std::string const text = fmt::format(
      "[source]\npath = \"{}\"\n[target]\npath = \"{}\"\n{}\n[model]\nmap = \"none\"\n"
      "[run]\nmemory = \"3 MiB\"\nio = \"{}\"\n",
      source.string(), target.string(), more, io);
  return run(parse_job_spec(text, "job.toml", {}), {}, Comm::world());
}

TEST(IoEngines, GiveTheSameTarget) {
  Comm const comm = Comm::world();
  SharedFolder const folder(comm);
  if (comm.rank() == 0) write_source(folder.path() / "source");
  comm.barrier();
  std::map<std::string_view, std::string_view> const targets = {
      {"in place", "format = \"dcp\"\nchunks = \"source\""},
      {"cut by rows", "format = \"dcp\"\nchunks = \"ranks\"\nranks = 3"},
      {"cut by columns",
       "format = \"dcp\"\nchunks = \"mesh\"\nmesh = \"tp=2\"\nplacements = \"*.weight: S1; *: R\""}};
  for (auto const& [what, keys] : targets) {
    std::map<std::string, std::vector<std::byte>> expected;
    for (IoEngine const& engine : io_engines()) {
      SCOPED_TRACE(testing::Message() << what << ", " << engine.name);
      fs::path const target = folder.path() / fmt::format("{} {}", what, engine.name);
      RunReport const report = run_with(engine.name, keys, folder.path() / "source", target);
      bool const refused = std::ranges::any_of(report.warnings, [](std::string const& warning) {
        return warning.starts_with("[run] io");
      });
      EXPECT_EQ((report.figures.text("run.write_mode") == engine.name),
                engine.name != "posix" && !refused);
      auto const files = files_in(target);
      ASSERT_GE(files.size(), 2U);
      if (expected.empty()) expected = files;
      EXPECT_EQ(files, expected);
    }
  }
}

TEST(IoEngines, ATrialChoosesThemWhereTheJobIsLarge) {
  Comm const comm = Comm::world();
  SharedFolder const folder(comm);
  if (comm.rank() == 0) write_source(folder.path() / "source");
  comm.barrier();
  fs::path const target = folder.path() / "target";
  JobSpec const spec = parse_job_spec(
      fmt::format("[source]\npath = \"{}\"\n[target]\npath = \"{}\"\nformat = \"dcp\"\n"
                  "[model]\nmap = \"none\"\n",
                  (folder.path() / "source").string(), target.string()),
      "job.toml", {});
  RunContext context;
  context.io_trial = {.least_job_bytes = 1};
  RunReport const report = run(spec, context, comm);
  std::vector<std::string> const reports = comm.all_gather(report.figures.value("run.io").dump());
  if (comm.rank() != 0) return;
  Json const io = parse_json(reports.front(), "report");
  for (char const* side : {"read", "write"})
    EXPECT_TRUE(std::ranges::any_of(
        io_engines(), [&](IoEngine const& one) { return *io.find(side)->text() == one.name; }));
  Json const* const trial = io.find("write_trial");
  ASSERT_NE(trial, nullptr) << io.dump();
  EXPECT_GT(*trial->find("posix")->integer(), 0);
  EXPECT_FALSE(fs::exists(target / ".reshard-io-trial"));
}

TEST(IoEngines, AnUnknownOneIsAMistakeOfTheJobFile) {
  try {
    parse_job_spec(
        "[source]\npath = \"a\"\n[target]\npath = \"b\"\nformat = \"dcp\"\n"
        "[run]\nio = \"fastest\"\n",
        "job.toml", {});
    FAIL() << "no error";
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_NE(error.sentence().find("posix"), std::string::npos) << error.sentence();
    EXPECT_NE(error.sentence().find("direct"), std::string::npos) << error.sentence();
  }
}

}  // namespace
}  // namespace reshard

int main(int argc, char** argv) {
  reshard::MpiSession const session(&argc, &argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
