#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include <gtest/gtest.h>

#include "core/base/hash/crc32.hpp"
#include "core/transport/comm.hpp"
#include "pipeline/version.hpp"
#include "tests/support/program_run.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard::test {

namespace fs = std::filesystem;

inline constexpr std::size_t shown_bytes = 2500;

inline std::string const source_tree = RESHARD_SOURCE_DIR;

inline std::string replaced(std::string text, std::string const& what, std::string const& with) {
  for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += with.size())
    text.replace(at, what.size(), with);
  return text;
}

/// Leaves out the characters of this set that follow `mark`, everywhere.
inline std::string without_after(std::string const& text, std::string const& mark,
                                 char const* set) {
  std::string result;
  std::size_t at = 0;
  for (std::size_t found = 0; (found = text.find(mark, at)) != std::string::npos;) {
    result += text.substr(at, found + mark.size() - at);
    at = std::min(text.find_first_not_of(set, found + mark.size()), text.size());
  }
  return result + text.substr(at);
}

/// "disk 36.8 KiB needed, 11.8 GiB free"
inline std::string without_size_of(std::string_view what, std::string text) {
  for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos;) {
    std::size_t const before = text.rfind(", ", at);
    if (before == std::string::npos) break;
    text.erase(before, at - before);
    at = before + 1;
  }
  return text;
}

/// Without what varies from run to run and from machine to machine.
inline std::string without_varying(std::string text, fs::path const& work) {
  text = replaced(std::move(text), work.string(), "WORK");
  text = replaced(std::move(text), source_tree, "TREE");
  text = replaced(std::move(text), version_number(), "VERSION");
  text = replaced(std::move(text), version_date(), "DATE");
  for (std::string const key :
       {"free_bytes", "bytes_verified_early", "peak_memory_bytes", "planned_memory_bytes",
        "seconds", "busy_seconds", "stall_seconds", "gib_per_second", "headers", "plan", "copy",
        "verify", "publish", "total", "newest_ns", "age_seconds"})
    text = without_after(text, "\"" + key + "\": ", "0123456789.e+-");
  text = without_after(text, "\"xxh3\": \"", "0123456789abcdef");
  text = without_after(text, "\"write_mode\": \"", "abcdefghijklmnopqrstuvwxyz");
  for (std::string const map : {"mcore.toml:", "decoder.toml:"})  // lines of a map that grows
    text = without_after(text, map, "0123456789");
  for (std::string const ending : {".part-", ".resume-", ".old-"})
    text = without_after(text, ending, "0123456789abcdef");
  text = without_size_of("iB for the program", std::move(text));
  return without_size_of("iB free", std::move(text));
}

inline std::string content(fs::path const& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::string checksum(std::string const& text) {
  return fmt::format("{:08x}", crc32(std::as_bytes(std::span(text))));
}

/// Runs commands in a scratch folder and compares what they say and write with recorded/TEST.txt.
class Recorded : public testing::Test {
 protected:
  void SetUp() override {
    before_ = fs::current_path();
    fs::current_path(scratch_.path());
    fs::create_directories("in");
    if (is_recording_)
      std::ofstream(record_file()) << "";
    else
      read_records();
  }
  void TearDown() override { fs::current_path(before_); }

  void copy_sample() {
    fs::copy(source_tree + "/tests/data/moe-tp2-pp2-ep2", "in/moe", fs::copy_options::recursive);
    fs::copy(source_tree + "/tests/data/moe-hf-reference", "in/reference",
             fs::copy_options::recursive);
  }

  /// Runs a command and compares what it said, and the files of `target`, with the record.
  Said check(std::string const& name, std::vector<std::string> const& words,
             fs::path const& target = {}) {
    Said said = run_words(words);
    std::string text = fmt::format("exit code {}\n", said.code);
    if (!said.error.empty())
      text += "error: " + without_varying(said.error, scratch_.path()) + "\n";
    std::string const out = without_varying(said.out, scratch_.path());
    text += out.substr(0, shown_bytes);
    if (out.size() > shown_bytes)
      text += fmt::format("\n... {} bytes, crc32 {}\n", out.size(), checksum(out));
    if (!target.empty()) text += files_of(target);
    compare(name, text);
    return said;
  }

  /// The same for `reshard run` of a job with these lines below [source], [target] and at the end.
  void job(std::string const& name, std::string const& source, std::string const& target,
           std::string const& model = "", std::string const& source_lines = "") {
    std::string const at = "out/" + name;
    fs::create_directories(fs::path(at).parent_path());
    std::ofstream(name + ".toml") << fmt::format(
        "[source]\npath = \"{}\"\n{}\n[target]\npath = \"{}\"\n{}\n[model]\n{}\n[run]\nmemory = "
        "\"1 MiB\"\ndevice = \"host\"\n",
        source, source_lines, at, target, model);
    check(name, {"run", name + ".toml", "--json"}, at);
  }

 private:
  std::string files_of(fs::path const& target) {
    std::vector<std::string> lines;
    if (fs::exists(target))
      for (auto const& entry : fs::recursive_directory_iterator(target)) {
        if (!entry.is_regular_file()) continue;
        std::string bytes = content(entry.path());
        if (entry.path().extension() == ".json")
          bytes = without_varying(std::move(bytes), scratch_.path());
        if (entry.path().filename() == "SHA256SUMS")
          bytes = without_after(std::move(bytes), "\n", "0123456789abcdef").substr(64);
        lines.push_back(fmt::format("{} {} {}\n", entry.path().lexically_relative(target).string(),
                                    bytes.size(), checksum(bytes)));
      }
    std::sort(lines.begin(), lines.end());
    return fmt::format("files:\n{}", fmt::join(lines, ""));
  }

  fs::path record_file() const {
    auto const* test = testing::UnitTest::GetInstance()->current_test_info();
    return source_tree + "/tests/pipeline/commands/recorded/" + test->name() + ".txt";
  }

  /// A record is a section of its test's file, below a line "=== name".
  void read_records() {
    std::istringstream lines(content(record_file()));
    std::string* section = nullptr;
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with("=== "))
        section = &records_[line.substr(4)];
      else if (section != nullptr)
        *section += line + "\n";
  }

  void compare(std::string const& name, std::string text) {
    if (!text.ends_with('\n')) text += '\n';
    if (is_recording_) {
      std::ofstream(record_file(), std::ios::app | std::ios::binary) << "=== " << name << "\n"
                                                                     << text;
      return;
    }
    ASSERT_TRUE(records_.contains(name)) << name << " has no record";
    std::string const& before = records_.at(name);
    if (text == before) return;
    std::istringstream now(text);
    std::istringstream then(before);
    std::string a;
    std::string b;
    for (int line = 1; std::getline(now, a), std::getline(then, b), now || then; ++line)
      ASSERT_EQ(a, b) << name << ", line " << line << ": the second is the record";
    FAIL() << name << " is not its record";
  }

  bool const is_recording_ = std::getenv("RESHARD_RECORD") != nullptr;
  std::map<std::string, std::string> records_;
  ScratchFolder scratch_{"recorded"};
  fs::path before_;
};

}  // namespace reshard::test
