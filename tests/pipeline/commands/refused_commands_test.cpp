// Command lines that are refused, by the smallest folder that each needs.

#include <cstdio>
#include <cstring>
#include <fstream>
#include <regex>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "core/base/capture.hpp"
#include "core/base/files/file.hpp"
#include "core/base/text/json.hpp"
#include "pipeline/cli/standard_output.hpp"
#include "tests/support/program_run.hpp"
#include "tests/support/scratch_folder.hpp"
#include "tests/support/small_folders.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

class RefusedCommands : public testing::Test {
 protected:
  void SetUp() override {
    before_ = fs::current_path();
    fs::current_path(scratch_.path());
    fs::create_directories("folder");
  }
  void TearDown() override { fs::current_path(before_); }

  static void expect(std::vector<std::string> const& words, int code, std::string_view sentence) {
    test::Said const said = test::run_words(words);
    EXPECT_EQ(said.code, code) << said.error;
    EXPECT_NE(said.error.find(sentence), std::string::npos) << said.error;
  }
  static void job(std::string const& name, std::string const& source, std::string const& more) {
    std::ofstream(name + ".toml") << "[source]\npath = \"" << source
                                  << "\"\n[target]\npath = \"out/" << name
                                  << "\"\nformat = \"dcp\"\n"
                                  << more;
  }

  ScratchFolder scratch_{"refused_commands"};
  fs::path before_;
};

TEST_F(RefusedCommands, NeedFilesOfTheirKind) {
  std::ofstream("list.json") << "[]";
  std::ofstream("index.json") << "{\"metadata\": {}}";
  test::make_llama_folder("llama", false);
  fs::copy("llama/config.json", "folder/config.json");
  expect({"check-map"}, 2, "check-map: no map is named");
  expect({"check-map", "llama", "--config", "list.json"}, 2, "list.json");
  expect({"check-map", "--draft", "llama/config.json", "index.json"}, 2,
         "index.json: has no weight_map");
  expect({"check-map", "--draft", "folder"}, 2, "folder: no stored names are known");
  expect({"run", "folder"}, 2, "folder: is a folder, not a job file");
  fs::create_directories("f\xff");
  expect({"init", "f\xff"}, 2, "the path is not UTF-8, as a job file has to be");
}

TEST_F(RefusedCommands, SayWhenStdoutCannotBeWritten) {
  std::fflush(stdout);
  int const usual = ::dup(STDOUT_FILENO);
  int const full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(full, 0);
  ::dup2(full, STDOUT_FILENO);
  auto const error = capture([] { write_to_stdout("text"); });
  ::dup2(usual, STDOUT_FILENO);
  ::close(usual);
  ::close(full);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::resources);
  EXPECT_NE(
      error->sentence().find("stdout: cannot be written: No space left on device. Free space"),
      std::string::npos)
      << error->sentence();
}

TEST_F(RefusedCommands, CompareNothingWhereNoMapIsKnown) {
  test::write_safetensors("folder/model.safetensors", {{"a.weight", DType::bf16, {4}}});
  job("plain", "folder", "[model]\nmap = \"none\"\n[run]\nverify = \"off\"\ndevice = \"host\"\n");
  ASSERT_EQ(test::run_words({"run", "plain.toml"}).code, 0);
  expect({"verify", "out/plain", "out/plain", "--map", "llama", "--self-check", "4"}, 2,
         "out/plain and out/plain: nothing could be compared: ");
}

TEST_F(RefusedCommands, AdviseMapNoneWhereTheTargetKeepsNames) {
  test::write_safetensors("folder/model.safetensors", {{"a.weight", DType::bf16, {4}}});
  std::string const begin = "folder: has no config.json, so the sizes of the model are not known. ";
  expect({"convert", "folder", "out/x", "--format", "huggingface"}, 3,
         begin + "Put it beside the weights, set source.config, or keep");
  expect({"convert", "folder", "out/x", "--format", "megatron"}, 3,
         begin + "Put it beside the weights, or set source.config. ");
}

TEST_F(RefusedCommands, CheckNoCodesAsIfTheyWereValues) {
  test::make_llama_folder("llama", false);
  ASSERT_EQ(test::run_words({"convert", "llama", "fp8", "--set", "target.quant=fp8-channel",
                             "--self-check", "3"})
                .code,
            0);
  test::Said const said = test::run_words({"verify", "llama", "fp8", "--self-check", "3"});
  EXPECT_EQ(said.code, 0) << said.out << said.error;
  EXPECT_NE(said.out.find("more not compared (computed values)"), std::string::npos) << said.out;
  ASSERT_EQ(test::run_words({"convert", "llama", "mg", "--format", "megatron"}).code, 0);
  ASSERT_EQ(test::run_words({"convert", "mg", "fp8-of-mg", "--set", "target.quant=fp8-channel",
                             "--reference", "llama"})
                .code,
            0);
  expect({"verify", "mg", "fp8-of-mg", "--self-check", "3"}, 2,
         "as where weights are quantised. Leave out --self-check: then all values are compared.");
}

/// Puts "model." in front of every name in the header of a safetensors file.
void add_prefix(fs::path const& file) {
  std::string const text = read_text_file(file, 1U << 20U);
  std::uint64_t bytes = 0;
  std::memcpy(&bytes, text.data(), sizeof bytes);
  Json const header = parse_json(text.substr(8, bytes), "header");
  std::string const values = text.substr(8 + bytes);
  Json longer;
  for (auto const& [name, value] : *header.members())
    longer.set(name == "__metadata__" ? name : "model." + name, value);
  std::string const written = longer.dump();
  bytes = written.size();
  std::ofstream out(file, std::ios::binary);
  out.write(reinterpret_cast<char const*>(&bytes), sizeof bytes);
  out << written << values;
}

TEST_F(RefusedCommands, NeedNoPrefixForASelfCheckThatFindsIt) {
  test::make_llama_folder("llama", false);
  test::make_llama_folder("longer", false);
  add_prefix("longer/model.safetensors");
  for (std::string const folder : {"llama", "longer"})
    ASSERT_EQ(test::run_words({"convert", folder, "out/" + folder, "--format", "dcp", "--set",
                               "model.map=none"})
                  .code,
              0);
  test::Said const said = test::run_words(
      {"verify", "out/longer", "out/llama", "--config-b", "llama", "--self-check", "4"});
  EXPECT_EQ(said.code, 0) << said.error;
  EXPECT_NE(said.out.find("all as in the source"), std::string::npos) << said.out;
}

TEST_F(RefusedCommands, LookAtWholeBytesAndWholeAxes) {
  test::write_safetensors("folder/model.safetensors", {{"small.weight", DType::f6_e2m3, {4}}});
  expect(
      {"extract", "folder", "*", "-o", "x.safetensors", "--map", "none"}, 3,
      "'small.weight': F6_E2M3 cannot be written as an array: its elements are smaller than a byte");
  expect({"suspects", "folder", "--map", "none"}, 3,
         "'small.weight': F6_E2M3 has elements smaller than a byte, which cannot be looked at");
  test::make_fp8_llama_folder("fp8");
  expect({"extract", "fp8", "*scale*", "--at", "hidden=0", "-o", "x.safetensors"}, 2,
         "counts hidden in blocks of 128. Leave the axis out");
}

TEST_F(RefusedCommands, ReadNoFilesAgainThatWereNotReadBack) {
  test::make_llama_folder("llama", false);
  job("once", "llama", "[run]\nverify = \"streamed\"\nmemory = \"1 MiB\"\ndevice = \"host\"\n");
  ASSERT_EQ(test::run_words({"run", "once.toml"}).code, 0);
  expect({"verify", "out/once", "--subset", "1/3"}, 2,
         "lists no files, because the job that wrote it did not read them back, so no part");
  job("again", "out/once", "[run]\nmemory = \"1 MiB\"\ndevice = \"host\"\n");
  expect({"plan", "again.toml", "--set", "source.verify=files"}, 2,
         "lists no files, because the job that wrote it did not read them back. Set source.verify");
  job("read", "llama", "[run]\nmemory = \"1 MiB\"\ndevice = \"host\"\n");
  ASSERT_EQ(test::run_words({"run", "read.toml"}).code, 0);
  expect({"verify", "out/read", "--subset", "1/3", "--record", "out/read/record"}, 2,
         "the record of what was read must not be inside the checkpoint");
}

TEST_F(RefusedCommands, ShowPicturesOfWhatTheyAreGiven) {
  test::make_llama_folder("llama", false);
  job("once", "llama", "");
  expect({"view", "llama", "llama", "-o", "llama/x.html"}, 2, "into which nothing is written");
  expect({"view", "once.toml", "--measured", "llama/config.json", "-o", "x.html"}, 2,
         "llama/config.json: has no run.bytes_written and run.seconds.copy above 0");
  EXPECT_FALSE(fs::exists("x.html"));
}

TEST_F(RefusedCommands, InspectSaysWhichConfigNoWeightsFit) {
  test::make_llama_folder("llama", false);
  std::string text = read_text_file("llama/config.json", 1 << 20);
  text = std::regex_replace(text, std::regex("\"num_attention_heads\": [0-9]+"),
                            "\"num_attention_heads\": 3");
  std::ofstream("llama/config.json") << text;
  EXPECT_NE(test::run_words({"inspect", "llama"}).out.find("a job would refuse it: "),
            std::string::npos);
}

TEST_F(RefusedCommands, InitNamesAKeyThatTransformersDoesNotExpect) {
  test::write_safetensors(
      "folder/model.safetensors",
      {{"model.model.norm.weight", DType::bf16, {4}}, {"model.lm_head.weight", DType::bf16, {4}}});
  EXPECT_NE(test::run_words({"init", "folder"}).out.find("# prefix = \"model.\""),
            std::string::npos);
}

}  // namespace
}  // namespace reshard
