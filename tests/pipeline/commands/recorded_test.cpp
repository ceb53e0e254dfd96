// The commands on small checkpoints: what they say and write is what was recorded. Jobs go through
// every format and back, so a change of any choice, name, header or byte shows.
//
// RESHARD_RECORD=1 writes the records anew, into recorded/ beside this file: look at the
// difference.

#include "tests/pipeline/commands/recorded.hpp"

#include "tests/support/small_folders.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;
using test::Recorded;
using test::source_tree;

constexpr char const* dropped = "optimizer = \"drop\"\nrng = \"drop\"";

TEST_F(Recorded, MoeThroughEveryFormat) {
  copy_sample();
  job("megatron", "in/moe",
      "format = \"megatron\"\nlayout.tp = 4\nlayout.pp = 2\nlayout.ep = 4\nlayout.etp = 1", "",
      dropped);
  job("stages", "in/moe",
      "format = \"megatron\"\nlayout.pp = 2\nlayout.vpp = 2\ntransformer_impl = \"local\"\n"
      "experts = \"sequential\"",
      "", dropped);
  job("torch_dist", "in/moe", "format = \"torch_dist\"\nlayout.tp = 2", "", dropped);
  job("fsdp", "in/moe", "format = \"fsdp_dtensor\"\nlayout.tp = 2\nchunk_bytes = \"8 KiB\"", "",
      dropped);
  job("hf", "in/moe",
      "format = \"huggingface\"\nreference = \"in/reference\"\nshard_bytes = \"100 KB\"",
      "map = \"qwen3_moe\"", dropped);
  job("hf-made", "in/moe", "format = \"huggingface\"", "map = \"qwen3_moe\"", dropped);
  job("hdf5", "in/moe", "format = \"hdf5\"", "map = \"qwen3_moe\"", dropped);
  job("dcp", "out/hf", "format = \"dcp\"\nchunks = \"ranks\"\nranks = 2", "map = \"none\"");
  job("hf-megatron", "out/hf", "format = \"megatron\"\nlayout.tp = 2\nlayout.ep = 2");
  job("hdf5-dist", "out/hdf5", "format = \"torch_dist\"\nlayout.pp = 2");
  job("dist-megatron", "out/torch_dist", "format = \"megatron\"\nlayout.tp = 2");
  job("fsdp-hf", "out/fsdp", "format = \"huggingface\"\nreference = \"in/reference\"",
      "map = \"qwen3_moe\"");
  for (std::string const at : {"megatron", "torch_dist", "fsdp", "hf", "hdf5", "dcp"}) {
    for (std::string const word : {"inspect", "ls", "digest", "suspects", "verify", "view"})
      check(word + "-" + at, {word, "out/" + at, "--json"});
    check("inspect-text-" + at, {"inspect", "out/" + at});
    check("init-" + at, {"init", "out/" + at});
    check("extract-" + at, {"extract", "out/" + at, "*", "-o", "arrays/" + at + ".safetensors"});
  }
  for (std::string const at : {"torch_dist", "fsdp", "hf", "hdf5"})
    check("same-" + at, {"verify", "out/megatron", "out/" + at, "--json"});
  check("extract",
        {"extract", "out/megatron", "experts.*", "--at", "layer=2,expert=1", "-o",
         "arrays/one.safetensors", "--json"},
        "arrays");
  check("extract-stored",
        {"extract", "out/hf", "model.norm.weight", "-o", "arrays/stored.safetensors"});
  check("inspect-file", {"inspect", "out/hf/model-00001-of-00007.safetensors"});
  check("ls-logical", {"ls", "out/megatron", "--logical", "--json"});
  check("inspect-verbose", {"inspect", "out/megatron", "--verbose"});
  check("diff", {"diff", "out/hf", "out/hdf5", "--json"});
  check("diff-text", {"diff", "out/hf", "out/hf-made"});
  check("view-of-two", {"view", "out/hf", "out/hf-made", "--json"});
}

TEST_F(Recorded, DenseAndTied) {
  test::make_llama_folder("in/dense", false);
  test::make_llama_folder("in/tied", true);
  for (std::string const kind : {"dense", "tied"}) {
    std::string const in = "in/" + kind;
    job(kind + "-megatron", in, "format = \"megatron\"\nlayout.tp = 2\nlayout.pp = 2");
    job(kind + "-dist", in, "format = \"torch_dist\"\nlayout.tp = 2");
    job(kind + "-hdf5", in, "format = \"hdf5\"");
    job(kind + "-dcp", in,
        "format = \"dcp\"\nchunks = \"mesh\"\nmesh = \"dp=2 tp=2\"\nplacements = \"*norm*: R "
        "R; *: S0 S1\"");
    job(kind + "-hf", "out/" + kind + "-megatron", "format = \"huggingface\"");
    check(kind + "-back", {"verify", in, "out/" + kind + "-hf", "--json"});
    check(kind + "-plan", {"plan", kind + "-hf.toml", "--set", "target.path=out/other", "--json"});
    check(kind + "-plan-text", {"plan", kind + "-hf.toml", "--set", "target.path=out/other"});
    check(kind + "-view", {"view", kind + "-hf.toml", "--json"});
    check(kind + "-map", {"check-map", "llama", "--config", in, "--json"});
    check(kind + "-map-text", {"check-map", "llama", "--config", in});
  }
  check("different", {"verify", "in/dense", "in/tied", "--json"});
  check("different-text", {"verify", "in/dense", "in/tied"});
  check("exists", {"run", "dense-hf.toml", "--json"});
  job("replaced", "in/dense", "format = \"huggingface\"\nshard_bytes = \"20 KB\"");
  check("again", {"run", "replaced.toml", "--json", "--set", "target.replace=true"},
        "out/replaced");
}

TEST_F(Recorded, Quantised) {
  test::make_fp8_llama_folder("in/fp8");
  job("megatron", "in/fp8", "format = \"megatron\"\nlayout.tp = 2");
  job("bf16", "in/fp8", "format = \"megatron\"\nlayout.tp = 2", "quant = \"dequantise-bf16\"");
  job("hf", "out/megatron", "format = \"huggingface\"");
  job("bf16-hf", "in/fp8", "format = \"huggingface\"", "quant = \"dequantise-bf16\"");
  job("stored", "in/fp8", "format = \"dcp\"", "map = \"none\"");
  for (std::string const word : {"inspect", "ls", "view"}) check(word, {word, "in/fp8", "--json"});
  check("back", {"verify", "in/fp8", "out/hf", "--json"});
  check("changed", {"verify", "in/fp8", "out/bf16", "--json"});
  check("diff", {"diff", "in/fp8", "out/bf16-hf", "--json"});
}

TEST_F(Recorded, TrainedState) {
  std::string const sample = source_tree + "/tests/data/flattened-optimizer.tar.xz";
  ASSERT_EQ(std::system(("tar -xJf '" + sample + "' -C in").c_str()), 0);
  for (std::string const kind : {"dense", "moe"}) {
    std::string const in = "in/" + kind + "/iter_0001000";
    ASSERT_TRUE(fs::exists(in)) << in;
    std::string const way = kind == "dense" ? "layout.pp = 2" : "layout.ep = 4";
    job(kind + "-dist", in, "format = \"torch_dist\"\n" + way);
    job(kind + "-separate", in, "format = \"torch_dist\"\nlayers = \"separate\"\n" + way, "",
        dropped);
    job(kind + "-stored", in, "format = \"torch_dist\"", "map = \"none\"");
    job(kind + "-megatron", in, "format = \"megatron\"\n" + way, "", dropped);
    job(kind + "-refused", in, "format = \"megatron\"\n" + way);
    job(kind + "-fsdp", in, "format = \"fsdp_dtensor\"\n" + way, "", "rng = \"drop\"");
    for (std::string const word : {"inspect", "ls", "digest", "view", "verify"})
      check(kind + "-" + word, {word, in, "--json"});
    check(kind + "-init", {"init", in});
    check(kind + "-same", {"verify", in, "out/" + kind + "-dist", "--json"});
  }
}

/// What is said of a checkpoint's logical tensors is what its own reshard.json says of them: the
/// same rows of a padded vocabulary, and optimizer state wherever it lies.
TEST_F(Recorded, OwnRecord) {
  std::string const sample = source_tree + "/tests/data/flattened-optimizer.tar.xz";
  ASSERT_EQ(std::system(("tar -xJf '" + sample + "' -C in").c_str()), 0);
  std::string const in = "in/moe/iter_0001000";
  job("dist", in, "format = \"torch_dist\"\nlayout.tp = 4\nlayout.ep = 2");
  job("ranks", in, "format = \"megatron\"\nlayout.tp = 2\nlayout.ep = 2", "", "rng = \"drop\"");
  job("weights", in, "format = \"huggingface\"", "map = \"qwen3_moe\"", dropped);
  auto const total_of = [](std::string const& out) {
    std::size_t const at = out.rfind("total ");
    return at == std::string::npos ? out : out.substr(at + 6, 32);
  };
  auto const recorded_total = [](std::string const& at) {
    std::string const text = test::content(at + "/reshard.json");
    return text.substr(text.find("\"total\": \"") + 10, 32);
  };
  for (std::string const at : {"out/dist", "out/ranks", "out/weights"}) {
    std::string const found = check("digest-" + at.substr(4), {"digest", at}).out;
    EXPECT_EQ(total_of(found), recorded_total(at)) << found;
    EXPECT_EQ(found.find("note:"), std::string::npos) << found;
    check("logical-" + at.substr(4), {"ls", at, "--logical"});
  }
  EXPECT_EQ(recorded_total("out/dist"), recorded_total("out/ranks"));
  for (std::string const at : {"out/dist", "out/ranks"})
    EXPECT_EQ(total_of(test::run_words({"digest", at, "--weights-only"}).out),
              recorded_total("out/weights"));
  std::string const same = check("same", {"verify", "out/dist", "out/ranks"}).out;
  EXPECT_EQ(same.find("does not state how many"), std::string::npos) << same;
  check("named", {"digest", "out/dist", "--map", "none"});
  check("weights-only", {"digest", "out/dist", "--weights-only"});
  // Without its record the padding counts, for nothing says what it is.
  fs::remove("out/dist/reshard.json");
  EXPECT_NE(total_of(check("alone", {"digest", "out/dist"}).out), recorded_total("out/ranks"));
}

/// In one process, for any number of ranks.
TEST_F(Recorded, PlannedForRanks) {
  copy_sample();
  job("done", "in/moe", "format = \"megatron\"\nlayout.tp = 2", "", dropped);
  std::vector<std::string> const plan = {"plan", "done.toml", "--set", "target.path=out/next"};
  auto const with = [&](std::vector<std::string> const& more) {
    std::vector<std::string> words = plan;
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  check("three", with({"--ranks", "3", "--verbose"}));
  check("three-json", with({"--ranks", "3", "--json"}));
  check("one", with({"--ranks", "1", "--verbose"}));
  check("exchanging", with({"--ranks", "3", "--verbose", "--set", "run.transport=mpi"}));
  check("none", with({"--ranks", "0"}));
}

TEST_F(Recorded, NightlyAndClean) {
  copy_sample();
  fs::create_directories("train");
  fs::copy("in/moe/iter_0001000", "train/iter_0001000", fs::copy_options::recursive);
  std::ofstream("nightly.toml")
      << "[source]\npath = \"train\"\noptimizer = \"drop\"\nrng = \"drop\"\n[target]\npath = "
         "\"serving\"\nformat = \"megatron\"\nlayout.tp = 2\n[run]\nmemory = \"1 MiB\"\ndevice = "
         "\"host\"\n[nightly]\nkeep = 1\nsettle_seconds = 0\n";
  check("first", {"nightly", "nightly.toml", "--json"}, "serving");
  check("nothing-to-do", {"nightly", "nightly.toml"}, "serving");
  fs::copy("in/moe/iter_0001000", "train/iter_0002000", fs::copy_options::recursive);
  fs::create_directories("train/iter_0003000");
  fs::create_directories("train/tmp-4");
  check("second", {"nightly", "nightly.toml", "--json"}, "serving");
  check("second-again", {"nightly", "nightly.toml", "--json"}, "serving");
  std::ofstream("train/latest_checkpointed_iteration.txt") << "1000";
  std::string const back = check("training-went-back", {"nightly", "nightly.toml", "--json"}).out;
  EXPECT_NE(back.find("names step 1000, but iter_0002000 is newer and converted"),
            std::string::npos);
  fs::remove("train/latest_checkpointed_iteration.txt");
  fs::remove_all("train/iter_0002000");
  check("older", {"nightly", "nightly.toml", "--json"}, "serving");
  check("refused", {"run", "nightly.toml", "--json"});
  std::string const token = "0123456789abcdef";
  fs::create_directories("place/.next.part-" + token + "/inside");
  fs::create_directories("place/.other.part-" + token);
  fs::create_directories("place/.next.resume-" + token);
  std::ofstream("place/.next.lock");
  std::ofstream("place/keep.txt") << "text";
  check("clean", {"clean", "place/next"}, "place");
  check("clean-again", {"clean", "place/next", "--json"}, "place");
  EXPECT_TRUE(fs::exists("place/.other.part-" + token));
}

TEST_F(Recorded, DamagedSources) {
  copy_sample();
  auto const at = [](std::string const& name, int tp, int pp, int ep) {
    return fmt::format("{}/iter_0001000/mp_rank_{:02}_{:03}_{:03}/model_optim_rng.pt", name, tp, pp,
                       ep);
  };
  auto const damaged = [&](std::string const& name) {
    fs::copy("in/moe", name, fs::copy_options::recursive);
    return name;
  };
  fs::remove_all(fs::path(at(damaged("gone"), 1, 0, 1)).parent_path());
  fs::remove(at(damaged("empty"), 0, 1, 0));
  fs::resize_file(at(damaged("cut"), 1, 1, 1), 1000);
  fs::resize_file(at(damaged("none"), 0, 0, 0), 0);
  std::ofstream(damaged("tracker") + "/latest_checkpointed_iteration.txt") << "2000";
  std::ofstream(damaged("words") + "/latest_checkpointed_iteration.txt") << "soon";
  {
    std::fstream flipped(at(damaged("flipped"), 0, 0, 1),
                         std::ios::in | std::ios::out | std::ios::binary);
    flipped.seekp(static_cast<std::streamoff>(fs::file_size(at("flipped", 0, 0, 1)) / 2));
    flipped.put('\x55').put('\xaa').put('\x33');
  }
  fs::create_directories(at(damaged("more"), 2, 0, 0).substr(0, 30));
  fs::copy(source_tree + "/tests/data/moe-hf-reference", damaged("both"),
           fs::copy_options::recursive);
  std::ofstream("both/model.safetensors") << "x";
  for (std::string const name : {"gone", "empty", "cut", "none", "tracker", "words", "flipped",
                                 "more", "both", "in", "nowhere"}) {
    check("inspect-" + name, {"inspect", name, "--json"});
    check("text-" + name, {"inspect", name});
    job("run-" + name, name, "format = \"megatron\"\nlayout.tp = 1", "", dropped);
  }
  job("whole-dist", "in/moe", "format = \"torch_dist\"", "", dropped);
  for (std::string const gone : {"metadata.json", "common.pt"}) {
    std::string const name = "without-" + gone;
    fs::copy("out/whole-dist", name, fs::copy_options::recursive);
    fs::remove(name + "/iter_0001000/" + gone);
    EXPECT_EQ(check("inspect-" + name, {"inspect", name}).code, 3);
    EXPECT_EQ(check("verify-recorded-" + name, {"verify", name}).code, 1);
    fs::remove(name + "/reshard.json");
    fs::remove(name + "/SHA256SUMS");
    EXPECT_EQ(check("verify-" + name, {"verify", name}).code, 1);
    job("run-" + name, name, "format = \"megatron\"\nlayout.tp = 1", "", dropped);
  }
  test::make_llama_folder("llama", false);
  std::ofstream("llama/model.safetensors", std::ios::app) << "more";
  check("inspect-longer", {"inspect", "llama", "--json"});
  job("run-longer", "llama", "format = \"megatron\"");
  fs::resize_file("llama/model.safetensors", 3000);
  check("inspect-shorter", {"inspect", "llama", "--json"});
  job("run-shorter", "llama", "format = \"megatron\"");
}

TEST_F(Recorded, RefusedJobs) {
  test::make_llama_folder("in/llama", false);
  int number = 0;
  for (std::string const target :
       {"format = \"gguf\"",
        "format = 3",
        "fromat = \"megatron\"",
        "format = \"megatron\"\nlayout.tp = 0",
        "format = \"megatron\"\nlayout.tp = \"x\"",
        "format = \"megatron\"\nlayout.tp = 3",
        "format = \"megatron\"\nlayout.pp = 5",
        "format = \"megatron\"\nlayout.ep = 2",
        "format = \"megatron\"\nlayout.etp = 2",
        "format = \"megatron\"\nlayout.vpp = 2",
        "format = \"megatron\"\nlayout.pipeline = \"Et|x\"",
        "format = \"megatron\"\nlayout.pp = 2\nlayout.pipeline = \"Ettt|L\"",
        "format = \"megatron\"\nlayout.pp = 2\nlayout.first_stage_layers = 2",
        "format = \"huggingface\"\nlayout.tp = 2",
        "format = \"huggingface\"\nshard_bytes = \"0\"",
        "format = \"huggingface\"\nshard_bytes = \"ten\"",
        "format = \"huggingface\"\nreference = \"nowhere\"",
        "format = \"dcp\"\nchunks = \"mesh\"",
        "format = \"dcp\"\nchunks = \"ranks\"",
        "format = \"dcp\"\nchunks = \"ranks\"\nranks = 0",
        "format = \"dcp\"\nranks = 2",
        "format = \"dcp\"\nchunks = \"mesh\"\nmesh = \"dp=two\"\nplacements = \"*: S0\"",
        "format = \"dcp\"\nchunks = \"mesh\"\nmesh = \"dp=2\"\nplacements = \"*: S9\"",
        "format = \"dcp\"\nchunks = \"mesh\"\nmesh = \"dp=2\"\nplacements = \"x: S0\"",
        "format = \"dcp\"\nchunks = \"mesh\"\nmesh = \"dp=2 tp=2\"\nplacements = \"*: S0\"",
        "format = \"megatron\"\nmp_rank_style = \"other\"",
        "format = \"megatron\"\nreplace = \"yes\"",
        "format = \"megatron\"\nexperts = \"many\"",
        "format = \"torch_dist\"\nchunk_bytes = \"-1\"",
        "format = \"hdf5\"\nlayout.tp = 2",
        "layout.tp = 2",
        "format = \"megatron\"\npath = \"twice\""})
    job(fmt::format("target-{:02}", number++), "in/llama", target);
  number = 0;
  for (std::string const model :
       {"map = \"lama\"", "map = \"mixtral\"", "map = \"nowhere.toml\"", "map = 3",
        "quant = \"drop\"", "unmapped = \"maybe\"", "true_vocab_size = -1",
        "true_vocab_size = 5000", "foreign_classes = 1"})
    job(fmt::format("model-{:02}", number++), "in/llama", "format = \"megatron\"", model);
  number = 0;
  for (std::string const source :
       {"format = \"gguf\"", "format = \"megatron\"", "optimizer = \"some\"", "prefix = \"model.\"",
        "etp = 0", "etp = 2", "verify = \"all\"", "replicas = \"most\"", "config = \"nowhere\"",
        "unknown = 1"})
    job(fmt::format("source-{:02}", number++), "in/llama", "format = \"megatron\"", "", source);
  number = 0;
  for (std::string const setting :
       {"target.layout.tp", "target.layuot.tp=2", "tp=2", "run.memory=lots", "run.memory=1",
        "run.memory=64 MiB", "run.stall_seconds=0", "run.device=gpu9", "run.transport=pigeon",
        "run.verify=never", "run.progress_seconds=-1", "target.layout.tp=2", "nightly.keep=2"})
    check(fmt::format("setting-{:02}", number++),
          {"plan", "target-07.toml", "--json", "--set", "target.layout.ep=1", "--set", setting});
  std::ofstream("all.toml") << "[source]\npath = 3\nfromat = \"megatron\"\n[target]\nformat = "
                               "\"gguf\"\nlayout.tp = \"x\"\n[run]\nmemory = true\n[more]\n";
  check("all-mistakes", {"run", "all.toml", "--json"});
  std::ofstream("broken.toml") << "[source\n";
  check("no-toml", {"run", "broken.toml", "--json"});
  check("no-file", {"run", "none.toml", "--json"});
  for (std::string const word : {"inspect", "ls", "digest", "suspects", "verify", "view", "init"})
    check("none-" + word, {word, "none", "--json"});
  check("none-extract", {"extract", "none", "*", "-o", "none.safetensors", "--json"});
}

TEST_F(Recorded, Maps) {
  copy_sample();
  check("qwen3_moe", {"check-map", "qwen3_moe", "--config", "in/reference", "--json"});
  check("qwen3_moe-text", {"check-map", "qwen3_moe", "--config", "in/reference"});
  std::ofstream("broken.toml") << "[tensors]\nx = 3\n";
  check("broken", {"check-map", "broken.toml", "--json"});
  check("unknown", {"check-map", "lama", "--json"});
  check("other-family", {"check-map", "mixtral", "--config", "in/reference", "--json"});
}

TEST_F(Recorded, WordsOfTheCommandLine) {
  check("help", {"--help"});
  check("defaults", {"--print-defaults"});
  for (std::string const word :
       {"run", "init", "plan", "nightly", "clean", "verify", "diff", "digest", "suspects",
        "extract", "inspect", "ls", "check-map", "view"})
    check("help-" + word, {word, "--help"});
  for (std::string const shell : {"bash", "zsh", "fish"}) check(shell, {"completion", shell});
  check("man", {"man", "reshard.1"});
  check("man-job", {"man", "reshard.toml.5"});
  check("no-command", {"frobnicate"});
  check("json-in-front", {"--json", "inspect", "nowhere"});
  check("json-alone", {"--json"});
  check("too-many", {"verify", "a", "b", "c"});
  check("no-choice", {"run", "job.toml", "--progress", "loud"});
  check("quiet-and-verbose", {"run", "job.toml", "--quiet", "--verbose"});
  check("no-option", {"run", "job.toml", "--frobnicate"});
}

}  // namespace
}  // namespace reshard

int main(int argc, char** argv) {
  reshard::MpiSession const session(&argc, &argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
