// `convert`, and jobs that come from standard input.

#include <fcntl.h>
#include <unistd.h>

#include "tests/pipeline/commands/recorded.hpp"
#include "tests/support/small_folders.hpp"

namespace reshard {
namespace {

using test::Recorded;
using test::Said;

/// A folder of its own, without records.
class ConvertCommand : public testing::Test {
 protected:
  void SetUp() override {
    before_ = std::filesystem::current_path();
    std::filesystem::current_path(scratch_.path());
    std::filesystem::create_directories("in");
    test::make_llama_folder("in/llama", false);
  }
  void TearDown() override { std::filesystem::current_path(before_); }

 private:
  ScratchFolder scratch_{"convert"};
  std::filesystem::path before_;
};

/// Standard input from a text, until it goes.
class Input {
 public:
  explicit Input(std::string const& text) : before_(::dup(STDIN_FILENO)) {
    std::ofstream("input") << text;
    int const file = ::open("input", O_RDONLY | O_CLOEXEC);
    ::dup2(file, STDIN_FILENO);
    ::close(file);
    std::clearerr(stdin);
  }
  ~Input() {
    ::dup2(before_, STDIN_FILENO);
    ::close(before_);
  }
  Input(Input const&) = delete;
  Input& operator=(Input const&) = delete;

 private:
  int before_;
};

TEST_F(Recorded, Convert) {
  test::make_llama_folder("in/llama", false);
  check("to-dist",
        {"convert", "in/llama", "out/dist", "--format", "torch_dist", "--layout", "tp=2,pp=2",
         "--dtype", "f32", "--save", "saved.toml", "--json"},
        "out/dist");
  EXPECT_EQ(
      test::content("saved.toml"),
      "[source]\npath = \"in/llama\"\n\n[target]\npath = \"out/dist\"\nformat = \"torch_dist\"\n"
      "dtype = \"f32\"\nlayout.tp = 2\nlayout.pp = 2\n");
  check("back", {"convert", "out/dist", "out/back", "--dtype", "bf16", "--save", "-", "--quiet"},
        "out/back");
  check("same", {"verify", "in/llama", "out/back", "--json"});
  check("cast", {"verify", "in/llama", "out/dist"});
  check("plan", {"convert", "out/dist", "out/other", "--plan", "--dtype", "bf16"});
  check("again", {"convert", "in/llama", "out/dist", "--format", "torch_dist", "--layout",
                  "tp=2,pp=2", "--dtype", "f32", "--save", "saved.toml", "--replace", "--quiet"});
}

TEST_F(ConvertCommand, OtherValuesOfAFolderGoIntoAFolder) {
  Said const said =
      test::run_words({"convert", "in/llama", "out/cast", "--dtype", "f32", "--quiet"});
  EXPECT_EQ(said.code, 0) << said.error;
  EXPECT_TRUE(std::filesystem::exists("out/cast/model.safetensors"));
  Said const plan =
      test::run_words({"convert", "in/llama", "out/cast", "--dtype", "f32", "--replace", "--plan"});
  EXPECT_NE(plan.out.find(" in 1 file; replaces what is there\n"), std::string::npos) << plan.out;
  Said const document = test::run_words(
      {"convert", "in/llama", "out/cast", "--dtype", "f32", "--replace", "--plan", "--json"});
  EXPECT_NE(document.out.find("\"replaces\": true"), std::string::npos) << document.out;
  Said const other =
      test::run_words({"convert", "in/llama", "out/new", "--dtype", "f32", "--plan", "--json"});
  EXPECT_NE(other.out.find("\"replaces\": false"), std::string::npos) << other.out;
}

TEST_F(ConvertCommand, Refused) {
  auto const expect = [](std::vector<std::string> const& words, int code,
                         std::string_view sentence) {
    std::vector<std::string> all = {"convert", "in/llama", "out/x"};
    all.insert(all.end(), words.begin(), words.end());
    Said const said = test::run_words(all);
    EXPECT_EQ(said.code, code) << said.error;
    std::string const text = said.out + said.error;  // a wrong command line is no Error
    EXPECT_NE(text.find(sentence), std::string::npos) << text;
    EXPECT_FALSE(std::filesystem::exists("out/x"));
  };
  expect({}, 2, "in/llama is a Hugging Face folder, so the target's format is not known");
  expect({"--format", "megatron", "--layout", "tp"}, 2, "--layout tp: expected AXIS=SIZE");
  expect({"--format", "megatron", "--layout", "tp=3"}, 2, "--layout tp=3: [target] layout.tp = 3");
  expect({"--format", "hdf5", "--layout", "tp=2"}, 2, "--layout tp=2: [target] layout.tp = 2: ");
  expect({"--format", "dcp", "--set", "source.optimizer=no"}, 2, "--set \"source.optimizer=no\"");
  expect({"--format", "dcp", "--save", "-", "--json"}, 2, "--save -: stdout");
  std::ofstream("other.toml") << "x";
  expect({"--format", "dcp", "--save", "other.toml"}, 4, "other.toml: exists already");
}

TEST_F(ConvertCommand, AdvisesOptions) {
  Said const said =
      test::run_words({"convert", "in/llama", "out/x", "--format", "hdf5", "--layout", "tp=2"});
  EXPECT_TRUE(said.error.ends_with(" `convert` takes keys as --set KEY=VALUE.")) << said.error;
  auto const refused = [](std::vector<std::string> const& words) {
    std::vector<std::string> all = {"convert"};
    all.insert(all.end(), words.begin(), words.end());
    return test::run_words(all).error;
  };
  EXPECT_EQ(refused({"nowhere", "out/x"}),
            "nowhere: does not exist, or is a link to nothing. Check the path.");
  EXPECT_TRUE(refused({"in/llama", "out/x", "--format", "megatron", "--set", "layout.tp=2"})
                  .ends_with("did you mean target.layout.tp?"));
  std::filesystem::create_directories("out/notes");
  std::ofstream("out/notes/notes.txt") << "x";
  for (char const* more : {"--quiet", "--replace"})
    EXPECT_NE(refused({"in/llama", "out/notes", "--format", "megatron", more})
                  .find("out/notes: is neither empty nor a checkpoint, so --replace does not "
                        "remove it. Choose another TARGET, or remove it yourself."),
              std::string::npos);
  std::filesystem::create_directories("out/empty");
  EXPECT_NE(refused({"in/llama", "out/empty", "--format", "megatron"})
                .find("out/empty: exists already. Choose another TARGET, or give --replace to "
                      "replace it."),
            std::string::npos);
}

TEST_F(ConvertCommand, AJobFromStandardInput) {
  std::string const job =
      "[source]\npath = \"in/llama\"\n[target]\npath = \"out/a\"\nformat = \"dcp\"\n";
  {
    Input const input(job);
    EXPECT_EQ(test::run_words({"plan", "-"}).code, 0);
  }
  {
    Input const input(job + "dtype = \"half\"\n");
    Said const said = test::run_words({"run", "-"});
    EXPECT_EQ(said.code, 2);
    EXPECT_NE(said.error.find("standard input:6:9: [target] dtype"), std::string::npos)
        << said.error;
  }
  {
    Input const input(std::string(5U << 20U, '#'));
    Said const said = test::run_words({"run", "-"});
    EXPECT_NE(said.error.find("which is no job file"), std::string::npos) << said.error;
  }
  Input const input(job);
  EXPECT_EQ(test::run_words({"run", "-", "--quiet"}).code, 0);
  EXPECT_TRUE(std::filesystem::exists("out/a/.metadata"));
}

TEST_F(Recorded, CastsOfQuantisedWeights) {
  test::make_fp8_llama_folder("in/fp8");
  std::vector<std::string> const words = {"convert",  "in/fp8",      "out/fp8",
                                          "--format", "huggingface", "--dtype"};
  auto const with = [&](std::vector<std::string> const& more) {
    std::vector<std::string> all = words;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  check("fp8", with({"f32", "--json"}), "out/fp8");
  check("fp8-same", {"verify", "in/fp8", "out/fp8"});
  Said const said =
      test::run_words(with({"fp16", "--replace", "--set", "model.quant=dequantise-bf16"}));
  EXPECT_EQ(said.code, 2);
  EXPECT_NE(said.error.find("[target] dtype: quantised weights become BF16"), std::string::npos)
      << said.error;
}

/// A config that states no dtype of weights.
TEST_F(ConvertCommand, CastsThatAreRefused) {
  auto const convert = [](std::vector<std::string> const& words) {
    std::vector<std::string> all = {"convert", "in/llama", "out/x"};
    all.insert(all.end(), words.begin(), words.end());
    return test::run_words(all);
  };
  std::string config = test::content("in/llama/config.json");
  for (std::string const key : {"\"dtype\"", "\"torch_dtype\""})
    config = test::replaced(config, key, "\"was\"");
  std::ofstream("in/llama/config.json") << config;
  Said said = convert({"--format", "dcp", "--dtype", "as-config"});
  EXPECT_EQ(said.code, 2);
  EXPECT_NE(said.error.find("states neither dtype nor torch_dtype"), std::string::npos)
      << said.error;
  std::ofstream("in/llama/config.json")
      << test::replaced(config, "\"was\": \"bfloat16\"", "\"dtype\": \"int8\"");
  if (config.find("\"was\": \"bfloat16\"") == std::string::npos)
    std::ofstream("in/llama/config.json")
        << "{\"dtype\": \"int8\"," << config.substr(config.find('{') + 1);
  said = convert({"--format", "dcp", "--dtype", "as-config"});
  EXPECT_EQ(said.code, 3);
  EXPECT_NE(said.error.find("is none of \"bfloat16\""), std::string::npos) << said.error;
}

}  // namespace
}  // namespace reshard
