#include "pipeline/job/job_spec.hpp"

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/base/files/file.hpp"
#include "pipeline/job/job_field.hpp"

namespace reshard {
namespace {

constexpr std::string_view small_megatron = R"([source]
path = "in"
[target]
path = "out"
format = "megatron"
)";
constexpr std::string_view small_huggingface = R"([source]
path = "in"
[target]
path = "out"
format = "huggingface"
)";

JobSpec parse(std::string_view text, std::vector<std::string> const& overrides = {}) {
  return parse_job_spec(text, "job.toml", overrides);
}

/// The sentence of the usage error that this job ends in; "" when it is accepted.
std::string refusal(std::string_view text, std::vector<std::string> const& overrides = {}) {
  try {
    parse(text, overrides);
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.sentence();
  }
  return "";
}

std::string with(std::string_view text, std::string_view more) {
  return std::string(text) + std::string(more);
}

testing::AssertionResult says(std::string const& sentence, std::string_view part) {
  if (sentence.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "'" << part << "' is not in:\n" << sentence;
}

TEST(JobSpec, FillsInDefaults) {
  JobSpec const job = parse(small_megatron);
  EXPECT_EQ(job.source.path, "in");
  EXPECT_EQ(job.source.format, FormatId::automatic);
  EXPECT_EQ(job.source.optimizer, StatePolicy::refuse);
  EXPECT_EQ(job.target.layout, JobSpec::Layout{});
  EXPECT_EQ(job.target.layout.size("tp"), 1);
  EXPECT_EQ(job.target.layout.size("etp"), 0) << "which stands for tp";
  EXPECT_FALSE(job.target.replace);
  EXPECT_EQ(job.target.options.huggingface.shard_bytes, 5'000'000'000U);
  EXPECT_EQ(job.run.memory_bytes, 134'217'728U);
  EXPECT_EQ(job.run.stall_seconds, 600);
  EXPECT_EQ(job.model.map, "auto");
  EXPECT_EQ(job.source.objects, SourceObjects::look);
  EXPECT_EQ(job.model.foreign_classes, ForeignClasses::refuse);
}

TEST(JobSpec, ReadsEveryKey) {
  JobSpec const job = parse(R"(
[source]
path = "in"
format = "huggingface"
optimizer = "drop"
rng = "drop"
objects = "unread"
[target]
path = "out"
format = "megatron"
replace = true
reflink = "never"
transformer_impl = "local"
experts = "sequential"
mp_rank_style = "full3d"
[target.layout]
tp = 4
pp = 2
vpp = 3
ep = 8
etp = 2
first_stage_layers = 3
last_stage_layers = 0
[model]
map = "qwen3_moe"
true_vocab_size = 151643
foreign_classes = "drop"
[run]
memory = "1 GiB"
transport = "mpi"
device = "host"
)");
  JobSpec::Layout const layout = {
      .sizes = {{"tp", 4}, {"pp", 2}, {"vpp", 3}, {"ep", 8}, {"etp", 2}},
      .first_stage_layers = 3,
      .last_stage_layers = 0,
      .pipeline = ""};
  EXPECT_EQ(job.target.layout, layout);
  EXPECT_EQ(job.source.format, FormatId::huggingface);
  EXPECT_EQ(job.source.rng, StatePolicy::drop);
  EXPECT_EQ(job.source.objects, SourceObjects::unread);
  EXPECT_EQ(job.model.foreign_classes, ForeignClasses::drop);
  EXPECT_TRUE(job.target.replace);
  EXPECT_EQ(job.target.reflink, ReflinkChoice::never);
  EXPECT_EQ(job.target.options.named.transformer_impl, "local");
  EXPECT_EQ(job.target.options.named.experts, "sequential");
  EXPECT_EQ(job.target.options.megatron.mp_rank_style, megatron::NameStyle::full3d);
  EXPECT_EQ(job.model.true_vocab_size, 151643);
  EXPECT_EQ(job.run.memory_bytes, 1ULL << 30U);
  EXPECT_EQ(job.run.transport, TransportChoice::mpi);
  EXPECT_EQ(job.run.device, DeviceChoice::host);
}

TEST(JobSpec, ReadsTheKeysOfAHuggingFaceTarget) {
  JobSpec const job = parse(with(small_huggingface, "reference = \"ref\"\nshard_bytes = 1000\n"));
  EXPECT_EQ(job.target.options.huggingface.reference, "ref");
  EXPECT_EQ(job.target.options.huggingface.shard_bytes, 1000U);
}

TEST(JobSpec, AcceptsTransportsAndDevicesThatOnlySomeBuildsHave) {
  JobSpec const job = parse(small_megatron, {"run.transport=nccl", "run.device=cuda"});
  EXPECT_EQ(job.run.transport, TransportChoice::nccl);
  EXPECT_EQ(job.run.device, DeviceChoice::cuda);
}

TEST(JobSpec, OverridesWinAndTheLastOneCounts) {
  JobSpec const job = parse(with(small_megatron, "layout.tp = 8\n"),
                            {"target.layout.tp=2", "target.layout.tp = 4", "run.memory=1 GiB",
                             "target.replace=true", "source.path=a=b", "model.map=\"x\""});
  EXPECT_EQ(job.target.layout.size("tp"), 4);
  EXPECT_EQ(job.run.memory_bytes, 1ULL << 30U);
  EXPECT_TRUE(job.target.replace);
  EXPECT_EQ(job.source.path, "a=b");
  EXPECT_EQ(job.model.map, "x");
}

TEST(JobSpec, PatienceHasALimitOnBothSides) {
  EXPECT_EQ(parse(small_megatron, {"run.stall_seconds=5"}).run.stall_seconds, 5);
  EXPECT_TRUE(says(refusal(small_megatron, {"run.stall_seconds=0"}), "from 1 to 86400"));
  EXPECT_TRUE(says(refusal(small_megatron, {"run.stall_seconds=86401"}), "from 1 to 86400"));
}

TEST(JobSpec, OverridesSupplyWhatTheFileLeavesOut) {
  EXPECT_EQ(
      parse("", {"source.path=in", "target.path=out", "target.format=huggingface"}).target.path,
      "out");
}

TEST(JobSpec, TakesTheShortWordOfHuggingFace) {
  JobSpec const job = parse(small_huggingface, {"source.format=hf", "target.format=hf"});
  EXPECT_EQ(job.source.format, FormatId::huggingface);
  EXPECT_EQ(job.target.format, FormatId::huggingface);
}

TEST(JobSpec, TrueAndFalseChooseTheWordsForThem) {
  JobSpec const off =
      parse(with(small_megatron, "[run]\nwork_stealing = false\nverify = false\n"), {});
  EXPECT_EQ(off.run.work_stealing, WorkStealingChoice::never);
  EXPECT_EQ(off.run.verify, VerifyChoice::off);
  JobSpec const on = parse(with(small_megatron, "[run]\nwork_stealing = true\n"), {});
  EXPECT_EQ(on.run.work_stealing, WorkStealingChoice::automatic);
}

TEST(JobSpec, ReadsEarlierNamesOfKeysWithANote) {
  JobSpec const job = parse(with(small_megatron,
                                 "since = \"before\"\nsince_links = true\n"
                                 "[run]\nhand_out = \"never\"\n"),
                            {});
  EXPECT_EQ(job.target.incremental_from, "before");
  EXPECT_TRUE(job.target.incremental_links);
  EXPECT_EQ(job.run.work_stealing, WorkStealingChoice::never);
  ASSERT_EQ(job.notes.size(), 3);
  EXPECT_EQ(std::ranges::count(job.notes,
                               "job.toml:6:9: target.since is now named target.incremental_from: "
                               "the earlier name is still read."),
            1);
  EXPECT_TRUE(says(print_spec(job), "incremental_from = \"before\""));
  EXPECT_TRUE(parse(print_spec(job)).notes.empty());
}

TEST(JobSpec, RefusesAKeyUnderBothOfItsNames) {
  EXPECT_TRUE(says(
      refusal(with(small_megatron, "since = \"a\"\nincremental_from = \"b\"\n")),
      "target.since is an earlier name of target.incremental_from, and both are given. Remove one"));
}

TEST(JobSpec, RefusesBadOverridesAndNamesThem) {
  EXPECT_TRUE(
      says(refusal(small_megatron, {"run.memory"}), R"(--set "run.memory": expected key=value)"));
  EXPECT_TRUE(says(refusal(small_megatron, {"run.memry=1 GiB"}),
                   R"(unknown key "run.memry": did you mean memory?)"));
  EXPECT_TRUE(says(refusal(small_megatron, {"tp=2"}), "did you mean target.layout.tp?"));
  EXPECT_TRUE(says(refusal(small_megatron, {"target.layout.tp=two"}),
                   R"([target] layout.tp = "two": expected an integer)"));
  EXPECT_TRUE(says(refusal(small_megatron, {"target.replace=yes"}), "expected true or false"));
}

TEST(JobSpec, ReportsEveryMistakeAtOnceInTheOrderOfTheFile) {
  std::string const sentence = refusal(R"([source]
path = 3
fromat = "megatron"
[target]
path = "out"
format = "megatron"
layout.tp = -1
replace = "yes"
[run]
memory = "512 MB!"
device = "tpu"
[modell]
map = "auto"
)");
  EXPECT_EQ(
      sentence,
      "job.toml:2:8: [source] path = 3: expected a string in double quotes, found 3\n"
      "job.toml:3:1: [source] unknown key \"fromat\": did you mean format?\n"
      "job.toml:7:13: [target] layout.tp = -1: expected a number from 1 to 32768\n"
      "job.toml:8:11: [target] replace = \"yes\": expected true or false, found \"yes\"\n"
      "job.toml:10:10: [run] memory = \"512 MB!\": expected a size above zero such as \"512 "
      "MiB\", \"5 GB\" or a plain number of bytes, found \"512 MB!\"\n"
      "job.toml:11:10: [run] device = \"tpu\": expected one of auto, host, cuda, emulated, found "
      "\"tpu\"\n"
      "job.toml:12:2: unknown key \"modell\": did you mean model?");
}

TEST(JobSpec, NamesMissingKeys) {
  std::string const sentence = refusal("");
  EXPECT_TRUE(says(sentence, "job.toml: [source] path is missing"));
  EXPECT_TRUE(says(sentence, "job.toml: [target] path is missing"));
  EXPECT_TRUE(says(sentence, "job.toml: [target] format is missing"));
}

struct WrongValue {
  std::string_view line;
  std::string_view part;
};

TEST(JobSpec, RefusesValuesOfTheWrongKind) {
  for (WrongValue const& wrong : std::vector<WrongValue>{
           {.line = "layout.tp = 2.0", .part = "layout.tp = 2.0: expected an integer, found 2.0"},
           {.line = "layout.tp = \"2\"", .part = "expected an integer, found \"2\""},
           {.line = "layout.pp = 0", .part = "[target] layout.pp = 0: expected a number from 1"},
           {.line = "layout.etp = -2", .part = "expected a number from 0"},
           {.line = "layout.vpp = 99999999999", .part = "expected a number from 1 to 32768"},
           {.line = "layout = 4", .part = "target.layout = 4: expected a table [target.layout]"},
           {.line = "layout = [1, 2]", .part = "target.layout = an array: expected a table"},
           {.line = "replace = 1", .part = "expected true or false, found 1"},
           {.line = "transformer_impl = {a = 1}",
           .part = "expected one of auto, transformer_engine, local, found a table"},
           {.line = "experts = 1979-05-27", .part = "found a date or a time"},
           {.line = "layout.\"tp.x\" = 1", .part = "unknown key \"tp.x\""},
           {.line = "\"layout.tp\" = 1", .part = "[target] unknown key \"layout.tp\""},
           {.line = "mp_rank_style = \"a\\u001bb\"",
           .part = "expected one of megatron, full3d, found \"a\\u001bb\""},
           {.line = "layout.pipeline = \"a\\u0000\"",
           .part = "a control character is not allowed here"},
       })
    EXPECT_TRUE(says(refusal(with(small_megatron, wrong.line)), wrong.part)) << wrong.line;
}

TEST(JobSpec, ATargetHasAFormatOfItsOwn) {
  std::string const all =
      "megatron, huggingface, dcp, torch_dist, fsdp_dtensor, hdf5, deepspeed, mistral";
  EXPECT_TRUE(says(refusal(small_megatron, {"target.format=auto"}),
                   "expected one of " + all + ", found \"auto\""));
}

TEST(JobSpec, WordsOfAFormatsOptionsStandForWhatTheFormatReads) {
  auto const options = [](std::string const& key) {
    JobSpec const job = parse(small_megatron, {key});
    EXPECT_EQ(parse(print_spec(job)), job) << key;
    return job.target.options;
  };
  using Names = megatron::AdapterNames;
  EXPECT_EQ(options("target.adapter=canonical").named.adapter, (Names{"bridge", true}));
  EXPECT_EQ(options("target.adapter=fused").named.adapter, (Names{"bridge", false}));
  EXPECT_EQ(options("target.adapter=mcore-bridge").named.adapter, (Names{"mcore_bridge", false}));
  EXPECT_EQ(options("target.megatron=0.17").named.megatron, 17);
  EXPECT_EQ(options("target.overlap_grad_reduce=off").megatron.overlap_grad_reduce, false);
  EXPECT_EQ(options("target.overlap_grad_reduce=auto"), TargetOptions());
}

TEST(JobSpec, TakesTheKeysOfADcpTarget) {
  JobSpec const job =
      parse(small_huggingface,
            {"target.format=dcp", "target.chunks=mesh", "target.mesh=dp=4 tp=2",
             "target.placements=*: S0 R", "source.prefix=model.", "target.prefix=net."});
  EXPECT_EQ(job.target.format, FormatId::dcp);
  EXPECT_EQ(job.target.options.dcp.chunks, ChunkGrid::Kind::mesh);
  EXPECT_EQ(job.target.options.dcp.mesh, "dp=4 tp=2");
  EXPECT_EQ(parse(print_spec(job)), job);
}

TEST(JobSpec, RefusesChunkKeysThatDoNotBelongTogether) {
  EXPECT_TRUE(says(refusal(small_huggingface, {"target.format=dcp", "target.ranks=4"}),
                   "applies only with target.chunks = \"ranks\""));
  EXPECT_TRUE(says(refusal(small_huggingface, {"target.format=dcp", "target.chunks=ranks"}),
                   "needs target.ranks as well"));
  EXPECT_TRUE(says(
      refusal(small_huggingface, {"target.format=dcp", "target.chunks=mesh", "target.mesh=dp=2"}),
      "needs target.placements as well"));
  EXPECT_TRUE(says(
      refusal(small_megatron, {"target.chunks=whole"}),
      "does not apply to target.format = \"megatron\". Remove it, or set target.format = \"dcp\""));
}

TEST(JobSpec, RefusesKeysWithoutMeaningForTheTarget) {
  for (std::string const key :
       {"layout.tp=1", "transformer_impl=auto", "experts=auto", "mp_rank_style=megatron"})
    EXPECT_TRUE(says(refusal(small_huggingface, {"target." + key}),
                     "does not apply to target.format = \"huggingface\""))
        << key;
  for (std::string const key : {"reference=x", "shard_bytes=5 GB"})
    EXPECT_TRUE(says(refusal(small_megatron, {"target." + key}),
                     "does not apply to target.format = \"megatron\""))
        << key;
}

TEST(JobSpec, RefusesATargetThatIsOrHoldsOrLiesInTheSource) {
  EXPECT_TRUE(says(refusal(small_megatron, {"target.path=./in/"}), "is also source.path"));
  EXPECT_TRUE(says(refusal(small_megatron, {"target.path=in/out"}), "is inside the source"));
  EXPECT_TRUE(says(refusal(small_megatron, {"source.path=out/deep"}),
                   "the source \"out/deep\" is inside it"));
  EXPECT_TRUE(says(refusal(small_megatron, {"target.path="}), "the string is empty"));
  EXPECT_TRUE(says(refusal(small_megatron, {"source.path=s3://b/x"}), "only local paths"));
  EXPECT_TRUE(says(refusal(small_megatron, {"target.path=$HOME/x"}), "environment variable"));
  EXPECT_EQ(refusal(small_megatron, {"target.path=in2"}), "");
}

/// The environment with another HOME, nullptr for none.
class OtherHome {
 public:
  explicit OtherHome(char const* home) {
    if (char const* const own = std::getenv("HOME")) own_ = own;
    home == nullptr ? ::unsetenv("HOME") : ::setenv("HOME", home, 1);
  }
  ~OtherHome() { own_.empty() ? ::unsetenv("HOME") : ::setenv("HOME", own_.c_str(), 1); }
  OtherHome(OtherHome const&) = delete;
  OtherHome& operator=(OtherHome const&) = delete;

 private:
  std::string own_;
};

TEST(JobSpec, ATildeIsTheHomeFolder) {
  {
    OtherHome const home("/home/a");
    JobSpec const job = parse(small_megatron, {"target.path=~/x", "source.path=~/in"});
    EXPECT_EQ(job.target.path, "/home/a/x");
    EXPECT_EQ(job.source.path, "/home/a/in");
    EXPECT_EQ(parse(small_megatron, {"target.path=~b/x"}).target.path, "~b/x");
    EXPECT_EQ(parse(small_megatron, {"target.names=~"}).target.options.named.names, "~");
  }
  OtherHome const none(nullptr);
  EXPECT_TRUE(says(refusal(small_megatron, {"target.path=~/x"}), "HOME is not set"));
}

TEST(JobSpec, AListIsAnArrayOrTextsBetweenCommas) {
  using Paths = std::vector<std::string>;
  std::string const one =
      "[source]\npath = \"in\"\naverage = [\"a\", \"~/b\"]\n[target]\npath = \"out\"\nformat = "
      "\"huggingface\"\n";
  OtherHome const home("/home/a");
  JobSpec const job = parse(one);
  EXPECT_EQ(job.source.average, (Paths{"a", "/home/a/b"}));
  EXPECT_EQ(parse(print_spec(job)).source.average, job.source.average);
  EXPECT_EQ(parse(one, {"source.average=x,~/y"}).source.average, (Paths{"x", "/home/a/y"}));
  EXPECT_EQ(parse(one, {"source.average=[\"x\", \"y\"]"}).source.average, (Paths{"x", "y"}));
  EXPECT_EQ(parse(one, {"source.average=\"x,y\""}).source.average, Paths{"x,y"});
  EXPECT_EQ(parse(one, {"source.average="}).source.average, Paths{});
  std::string const wrong =
      "[source]\npath = \"in\"\naverage = [1]\n" + one.substr(one.find("[target]"));
  EXPECT_TRUE(says(refusal(wrong), "average = an array: expected an array of strings"));
  EXPECT_TRUE(says(refusal(one, {"source.average=out/x"}), "is inside the other"));
  EXPECT_TRUE(says(refusal(one, {"model.quant=dequantise-bf16"}), "is not combined with"));
}

TEST(JobSpec, TrueAndFalseAreOnAndOff) {
  std::string const key = "overlap_grad_reduce = ";
  auto const overlaps = [](JobSpec const& job) {
    return job.target.options.megatron.overlap_grad_reduce;
  };
  EXPECT_EQ(overlaps(parse(with(small_megatron, key + "false"))), false);
  EXPECT_EQ(overlaps(parse(with(small_megatron, key + "true"))), true);
  EXPECT_EQ(overlaps(parse(small_megatron, {"target.overlap_grad_reduce=true"})), true);
  EXPECT_TRUE(says(refusal(with(small_megatron, "chunks = true")), "expected one of"));
}

TEST(JobSpec, OptionsMakeAJob) {
  std::vector<GivenKey> const keys = {{"SOURCE in", "source.path", "in"},
                                      {"TARGET out", "target.path", "out"},
                                      {"--format torch_dist", "target.format", "torch_dist"},
                                      {"--layout tp=4", "target.layout.tp", "4"},
                                      {"--dtype bf16", "target.dtype", "bf16"}};
  std::vector<std::string> const more = {"source.rng=drop"};
  JobSpec const job = job_of_keys(keys, more);
  EXPECT_EQ(job.target.layout.size("tp"), 4);
  EXPECT_EQ(job.target.dtype, TargetDType::bf16);
  std::string const text = short_job_text(job);
  EXPECT_EQ(text,
            "[source]\npath = \"in\"\nrng = \"drop\"\n\n[target]\npath = \"out\"\nformat = "
            "\"torch_dist\"\ndtype = \"bf16\"\nlayout.tp = 4\n");
  EXPECT_EQ(parse(text), job);
}

TEST(JobSpec, MistakesOfOptionsNameTheOption) {
  auto const refused = [](std::string const& option, std::string const& key,
                          std::string const& word) {
    std::vector<GivenKey> const keys = {{"SOURCE in", "source.path", "in"},
                                        {"TARGET out", "target.path", "out"},
                                        {"--format dcp", "target.format", "dcp"},
                                        {option, key, word}};
    try {
      job_of_keys(keys, {});
    } catch (Error const& error) {
      return error.sentence();
    }
    return std::string();
  };
  EXPECT_EQ(refused("--dtype bf17", "target.dtype", "bf17"),
            "--dtype bf17: [target] dtype = \"bf17\": expected one of keep, bf16, fp16, f32, "
            "as-config, found \"bf17\" (did you mean bf16?)");
  EXPECT_TRUE(says(refused("--layout tp=0", "target.layout.tp", "0"),
                   "--layout tp=0: [target] layout.tp = 0: expected a number from 1"));
  EXPECT_TRUE(
      says(refused("--layout zp=2", "target.layout.zp", "2"), "--layout zp=2: unknown key"));
  EXPECT_TRUE(says(refused("--format hugginface", "target.format", "hugginface"),
                   "(did you mean huggingface?)"));
}

TEST(JobSpec, RefusesAnExpertTensorSizeThatTheFoldersCannotHold) {
  EXPECT_TRUE(says(refusal(small_megatron, {"target.layout.tp=2", "target.layout.etp=4"}),
                   "only when etp divides tp = 2. Sizes that fit: 1, 2, or 0"));
  EXPECT_EQ(refusal(small_megatron, {"target.layout.tp=4", "target.layout.etp=2"}), "");
}

TEST(JobSpec, TakesVirtualStagesFromThePipelineLayout) {
  JobSpec const job =
      parse(with(small_megatron, "layout.pp = 16\nlayout.pipeline = \"Ettt|(tt|)*29,m|L\"\n"));
  EXPECT_EQ(job.target.layout.size("vpp"), 2);
}

TEST(JobSpec, RefusesAPipelineLayoutThatDisagrees) {
  std::string const line = "layout.pipeline = \"Et|t|t|tL\"\n";
  EXPECT_TRUE(says(refusal(with(small_megatron, line), {"target.layout.pp=3"}),
                   "has 4 stages, which pp = 3 does not divide. Sizes of pp that fit: 1, 2, 4."));
  EXPECT_TRUE(
      says(refusal(with(small_megatron, line), {"target.layout.pp=2", "target.layout.vpp=4"}),
           "has 4 stages, but pp x vpp = 2 x 4"));
  EXPECT_TRUE(says(refusal(with(small_megatron, line),
                           {"target.layout.pp=4", "target.layout.first_stage_layers=1"}),
                   "Keep one of the two"));
  EXPECT_TRUE(says(refusal(small_megatron, {"target.layout.pipeline=Ett;L"}),
                   "layout.pipeline = \"Ett;L\": pipeline layout 'Ett;L'"));
  EXPECT_TRUE(
      says(refusal(small_megatron, {"target.layout.pipeline=tt|tt"}), "exactly one embedding"));
}

TEST(Sizes, AreWholeNumbersWithAUnit) {
  EXPECT_EQ(keys::bytes_from_text("4096"), 4096U);
  EXPECT_EQ(keys::bytes_from_text("512 MiB"), 512ULL << 20U);
  EXPECT_EQ(keys::bytes_from_text("1GiB"), 1ULL << 30U);
  EXPECT_EQ(keys::bytes_from_text("5 GB"), 5'000'000'000U);
  EXPECT_EQ(keys::bytes_from_text("1 gib"), 1ULL << 30U);
  for (std::string_view const bad : {"", " ", "MiB", "-1 MiB", "1.5 GiB", "1  GiB", "1 ",
                                     "9223372036854775808", "99999999999 TiB", "1 GiB "})
    EXPECT_EQ(keys::bytes_from_text(bad), std::nullopt) << bad;
  for (std::uint64_t const bytes :
       {1ULL, 1000ULL, 1024ULL, 5'000'000'000ULL, 512ULL << 20U, 123'457ULL})
    EXPECT_EQ(keys::bytes_from_text(keys::text_from_bytes(bytes)), bytes);
  EXPECT_EQ(keys::text_from_bytes(512ULL << 20U), "512 MiB");
  EXPECT_EQ(keys::text_from_bytes(5'000'000'000ULL), "5 GB");
}

TEST(PrintSpec, ParsesBackToTheSameSpec) {
  for (JobSpec const& job :
       {parse(small_megatron, {"target.layout.etp=1", "target.layout.tp=2", "run.memory=77777",
                               "model.map=a \"quoted\" \\ name"}),
        parse(small_megatron, {"target.layout.pp=2", "target.layout.pipeline=Et|t|t|tL"}),
        parse(small_huggingface, {"target.reference=ref", "source.optimizer=drop"})})
    EXPECT_EQ(parse(print_spec(job)), job) << print_spec(job);
}

TEST(PrintSpec, LeavesOutWhatHasNoMeaningForTheTarget) {
  EXPECT_EQ(print_spec(parse(small_huggingface)).find("layout"), std::string::npos);
  EXPECT_EQ(print_spec(parse(small_megatron)).find("shard_bytes"), std::string::npos);
}

TEST(DefaultJobText, IsAValidJobOfDefaultsThatNamesEveryKey) {
  std::string const text = default_job_text();
  JobSpec expected;
  expected.source.path = "/path/to/source";
  expected.target.path = "/path/to/target";
  EXPECT_EQ(parse(text), expected);
  for (job::Field const& field : job::fields())
    EXPECT_NE(text.find(fmt::format("{} = ", field.name)), std::string::npos) << field.name;
}

TEST(ExampleJobs, AreAccepted) {
  int count = 0;
  for (auto const& entry :
       std::filesystem::directory_iterator(RESHARD_SOURCE_DIR "/configs/jobs")) {
    std::string const name = entry.path().filename().string();
    EXPECT_NO_THROW(parse_job_spec(read_text_file(entry.path(), 1U << 20U), name, {})) << name;
    ++count;
  }
  EXPECT_GE(count, 3);
}

std::string repeated(std::string_view part, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += part;
  return out;
}

TEST(HostileJobFile, EndsAsAnError) {
  EXPECT_TRUE(says(refusal("path = \n"), "job.toml:1:"));
  EXPECT_TRUE(says(refusal(std::string("a = \"\0\"", 8)), "not TOML"));
  EXPECT_TRUE(says(refusal("[source]\npath = \"/a\n[target]\n"),
                   ":2: not TOML: a string has no closing quote. Add it"));
  EXPECT_TRUE(says(refusal("target.dtype = \"bfloat16\"\n"), "did you mean bf16?"));
  EXPECT_NE(refusal("\xff\xfe\xfd"), "");
  EXPECT_NE(refusal("[source]\npath = \"a\"\npath = \"b\"\n"), "");
  EXPECT_TRUE(says(refusal("a = " + repeated("[", 30000)), "not TOML"));
  EXPECT_TRUE(says(refusal("a = " + repeated("{a = ", 12000)), "not TOML"));
  EXPECT_TRUE(says(refusal("[" + repeated("a.", 30000) + "a]"), "not nested so deeply"));
  EXPECT_NE(refusal("[" + repeated("a.", 2000) + "a]"), "");
  EXPECT_TRUE(says(refusal(repeated("#", 100'000)), "a job file has at most 65536"));
  std::string many;
  for (int i = 0; i < 3000; ++i) many += fmt::format("k{} = 1\n", i);
  EXPECT_TRUE(says(refusal(many), "more mistakes"));
}

TEST(HostileJobFile, CutOffAnywhereIsAnErrorOrAJob) {
  std::string const whole =
      print_spec(parse(small_megatron, {"target.layout.pp=2", "target.layout.pipeline=Et|t|t|tL"}));
  for (std::size_t length = 0; length < whole.size(); ++length)
    refusal(std::string_view(whole).substr(0, length));
}

TEST(HostileJobFile, AnyFlippedByteIsAnErrorOrAJob) {
  std::string const whole = print_spec(parse(small_huggingface));
  for (std::size_t at = 0; at < whole.size(); ++at)
    for (unsigned const flip : {0x01U, 0x20U, 0x80U, 0xffU}) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(static_cast<unsigned char>(damaged[at]) ^ flip);
      refusal(damaged);
    }
}

TEST(Nightly, HasATableOfItsOwn) {
  std::string const text = with(small_megatron, "[nightly]\nkeep = 3\n");
  std::string const sentence = refusal(with(text, "settle_seconds = 5\n"));
  EXPECT_TRUE(says(sentence, "job.toml:6:2: [nightly]: only `reshard nightly` uses this table"));
  EXPECT_EQ(sentence.find('\n'), std::string::npos) << sentence;
  EXPECT_TRUE(says(refusal(small_megatron, {"nightly.settle_seconds=5"}),
                   "--set \"nightly.settle_seconds=5\": [nightly] settle_seconds = 5: only"));
  JobSpec const job = parse_job_spec(text, "job.toml", {}, JobUse::nightly);
  EXPECT_EQ(job.nightly.keep, 3);
  EXPECT_EQ(job.nightly.settle_seconds, 60);
  EXPECT_FALSE(job.nightly.backfill);
  JobSpec const more = parse_job_spec(
      text +
          "backfill = true\nafter = \"rclone copy \\\"$1\\\" store:\"\nafter_seconds = 60\nverify_subset = 30\n",
      "job.toml", {}, JobUse::nightly);
  EXPECT_TRUE(more.nightly.backfill);
  EXPECT_EQ(more.nightly.after, "rclone copy \"$1\" store:");
  EXPECT_EQ(more.nightly.after_seconds, 60);
  EXPECT_EQ(more.nightly.verify_subset, 30);
  EXPECT_THROW(parse_job_spec(text, "job.toml", std::vector<std::string>{"nightly.keep=-1"},
                              JobUse::nightly),
               Error);
  // What a manifest records is a job for `run`.
  JobSpec expected = job;
  expected.nightly = {};
  EXPECT_EQ(parse(print_spec(job)), expected);
}

TEST(JobSpec, DeviceMemoryFollowsTheStagingMemoryUnlessItIsSaid) {
  std::string const job =
      "[source]\npath = \"a\"\n[target]\npath = \"b\"\nformat = \"huggingface\"\n[run]\nmemory = \"2 GiB\"\n";
  EXPECT_EQ(parse_job_spec(job, "job.toml", {}).run.device_bytes(), 2ULL << 30U);
  EXPECT_EQ(
      parse_job_spec(job + "device_memory = \"auto\"\n", "job.toml", {}).run.device_memory_bytes,
      0U);
  EXPECT_EQ(parse_job_spec(job + "device_memory = \"64 MiB\"\n", "job.toml", {}).run.device_bytes(),
            64ULL << 20U);
  EXPECT_THROW(parse_job_spec(job + "device_memory = \"much\"\n", "job.toml", {}), Error);
}

TEST(JobSpec, NcclIsRefusedWhereTheJobUsesNoGpu) {
  std::string const job =
      "[source]\npath = \"a\"\n[target]\npath = \"b\"\nformat = \"huggingface\"\n[run]\ntransport = \"nccl\"\n";
  EXPECT_EQ(parse_job_spec(job, "job.toml", {}).run.transport, TransportChoice::nccl);
  for (std::string const device : {"host", "emulated"}) {
    std::string const sentence = [&] {
      try {
        parse_job_spec(job + "device = \"" + device + "\"\n", "job.toml", {});
      } catch (Error const& error) {
        return error.sentence();
      }
      return std::string();
    }();
    EXPECT_NE(sentence.find("job.toml:7:13: [run] transport"), std::string::npos) << sentence;
    EXPECT_NE(sentence.find(device), std::string::npos) << sentence;
  }
}

}  // namespace
}  // namespace reshard
