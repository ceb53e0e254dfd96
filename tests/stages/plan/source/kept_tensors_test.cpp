// Stored tensors without a logical tensor: refused, kept, left out.
#include "stages/plan/source/names/kept_tensors.hpp"

#include "core/mapping/quant_finder.hpp"

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "tests/support/made_checkpoint.hpp"

namespace reshard {
namespace {

using Lines = std::vector<std::string>;

constexpr char const* common = "let = { L = 1, M = 0 }\naxes = { hidden = 4, layer = 1 }\n";

using test::MadeTensor;
using Tensors = std::vector<MadeTensor>;

/// A folder of two files.
Checkpoint folder(Tensors const& first, Tensors const& second) {
  return test::MadeCheckpoint(FormatId::huggingface).add_file(first).add_file(second).value;
}

Checkpoint with_vision() {
  return folder({{"norm.weight", {4}}, {"vision.b.bias", {3}}},
                {{"vision.a.weight", {3, 5}}, {"vision.scale", {}}});
}

struct Job {
  explicit Job(std::string const& family)
      : maps{
            parse_map_file(
                std::string(common) +
                    "tensors = { '' = ['norm: hidden'] }\n[stored]\n'final.weight' = 'norm: hidden'\n",
                "core.toml"),
            parse_map_file(family + common + "[stored]\n'norm.weight' = 'norm: hidden'\n",
                           "family.toml")} {}

  void settle(Checkpoint const& source, Unmapped unmapped, FormatId format = FormatId::megatron,
              std::string const& names = "auto",
              megatron::TargetProgram program = megatron::TargetProgram::as_source) {
    PlanRequest request;
    request.options.named.program = program;
    request.read.unmapped = unmapped;
    request.target.format = format;
    request.options.named.names = names;
    settled = settle_unmapped(maps, source, view_of(source), Json(), request, warnings);
  }
  /// Names and shapes of a whole side of the job.
  Lines names(MapFile const& map) const {
    Model const model(*maps.family, maps.core, {Json::object(), "facts", 0});
    Side const side(model, map, {});
    Lines result;
    for (StoredName const& name : side.names(nullptr)) {
      std::string text = name.name;
      for (Index const extent : side.shape(name)) text += fmt::format(" {}", extent);
      result.push_back(text);
    }
    return result;
  }

  MapChoice maps;
  Lines warnings;
  SettledParts settled;
};

template <class Work>
std::string refusal(Work&& work, ErrorKind kind) {
  try {
    work();
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), kind) << error.sentence();
    return error.sentence();
  }
  return "no error";
}

TEST(KeptTensors, AreRefusedWithoutAWord) {
  Job job("keep = ['vision.*', 'audio.*']\n");
  EXPECT_EQ(
      refusal([&] { job.settle(with_vision(), Unmapped::refuse); }, ErrorKind::usage),
      "[model] unmapped: 3 stored tensors such as 'vision.a.weight' are not part of what "
      "family.toml describes (its `keep`: vision.*, audio.*). Set model.unmapped = \"keep\" to "
      "copy them byte for byte, or \"drop\" to leave them out.");
}

TEST(KeptTensors, HaveTheirStoredNameOnEverySide) {
  Job job("keep = ['vision.*']\n");
  job.settle(with_vision(), Unmapped::keep);
  EXPECT_EQ(job.names(*job.maps.family),
            (Lines{"norm.weight 4", "vision.a.weight 3 5", "vision.b.bias 3", "vision.scale"}));
  EXPECT_EQ(job.names(job.maps.core),
            (Lines{"final.weight 4", "vision.a.weight 3 5", "vision.b.bias 3", "vision.scale"}));
  EXPECT_TRUE(job.warnings.empty());
}

TEST(KeptTensors, StandBesideTheEmbedding) {
  Job job("keep = ['vision.*']\n");
  job.settle(with_vision(), Unmapped::keep);
  Model const model(*job.maps.family, job.maps.core, {Json::object(), "facts", 0});
  SideOptions options;
  options.local = true;
  Side const side(model, job.maps.core, std::move(options));
  PipelineChunk const first{0, 0, {{0, 1, false}}, {}, true, false};
  PipelineChunk const last{1, 0, {}, {}, false, true};
  EXPECT_EQ(side.names(&first).size(), 4U);
  EXPECT_EQ(side.names(&last).size(), 1U);
}

TEST(KeptTensors, AreNeverSharedByShape) {
  Job job("keep = ['vision.*']\n");
  job.settle(folder({{"vision.a", {3, 3}}}, {{"vision.b", {3, 3}}}), Unmapped::keep);
  Model const model(*job.maps.family, job.maps.core, {Json::object(), "facts", 0});
  EXPECT_EQ(job.names(*job.maps.family), (Lines{"norm.weight 4", "vision.a 3 3", "vision.b 3 3"}));
  EXPECT_EQ(model.tensors().size(), 3U);
}

TEST(KeptTensors, AreLeftOutOnRequestWithAWarning) {
  Job job("keep = ['vision.*']\n");
  job.settle(with_vision(), Unmapped::drop);
  EXPECT_EQ(job.names(*job.maps.family), (Lines{"norm.weight 4"}));
  Model const model(*job.maps.family, job.maps.core, {Json::object(), "facts", 0});
  for (MapFile const* map : {&job.maps.core, &*job.maps.family})
    EXPECT_TRUE(Side(model, *map, {}).dropped("vision.a.weight"));
  EXPECT_EQ(
      job.warnings,
      (Lines{
          "3 stored tensors such as 'vision.a.weight' are left out (model.unmapped = \"drop\")"}));
}

TEST(KeptTensors, ThatAreNotThereNeedNoWord) {
  for (char const* keep : {"", "keep = ['audio.*']\n"}) {
    Job job(keep);
    job.settle(with_vision(), Unmapped::refuse);
    EXPECT_EQ(job.names(*job.maps.family), (Lines{"norm.weight 4"}));
  }
}

TEST(KeptTensors, WithBracesInTheirNameCannotBeKept) {
  Job job("keep = ['vision.*']\n");
  Checkpoint const source = folder({{"vision.{a}", {3}}}, {});
  EXPECT_EQ(refusal([&] { job.settle(source, Unmapped::keep); }, ErrorKind::source)
                .find("'vision.{a}': a stored name with braces cannot be kept."),
            0U);
}

TEST(KeptTensors, OfMegatronFilesAreFoundToo) {
  Job job("keep = ['vision.*']\n");
  test::MadeCheckpoint made(FormatId::megatron);
  for (int file = 0; file < 2; ++file) made.add_share(SharePlace(), {{"vision.a", {2, 2}}});
  job.settle(made.value, Unmapped::keep);
  EXPECT_EQ(job.names(job.maps.core), (Lines{"final.weight 4", "vision.a 2 2"}));
}

constexpr char const* with_trainers =
    "keep = ['vision.*']\nkept = { first = { 'eyes.*' = 'vision.*' }, other = { root = 'lm.', drop = ['vision.scale'], 'v.a.*' = 'vision.a.*', 'v.b.*' = 'vision.b.*' } }\n";

TEST(KeptTensors, HaveTheNamesOfTheUsualTrainerInMegatronsFiles) {
  Job job(with_trainers);
  job.settle(with_vision(), Unmapped::keep);
  EXPECT_EQ(job.names(*job.maps.family),
            (Lines{"norm.weight 4", "vision.a.weight 3 5", "vision.b.bias 3", "vision.scale"}));
  EXPECT_EQ(job.names(job.maps.core),
            (Lines{"final.weight 4", "eyes.a.weight 3 5", "eyes.b.bias 3", "eyes.scale"}));
  EXPECT_EQ(job.settled.target.root, "language_model.");
  EXPECT_EQ(job.settled.target.trainer, "first");
  EXPECT_EQ(job.settled.target.tower, "family");
  EXPECT_EQ(job.settled.note,
            "3 tensors beside the language model: 3 byte for byte; names of Hugging Face -> first");
}

TEST(KeptTensors, HaveTheNamesOfTheTrainerThatIsAskedFor) {
  Job job(with_trainers);
  job.settle(with_vision(), Unmapped::keep, FormatId::torch_dist, "other");
  EXPECT_EQ(job.names(job.maps.core), (Lines{"final.weight 4", "v.a.weight 3 5", "v.b.bias 3"}));
  EXPECT_EQ(job.settled.target.root, "lm.");
  EXPECT_EQ(job.warnings, (Lines{"1 stored tensor (vision.scale) is left out: models of "
                                 "[kept.other] in family.toml have no such part"}));
  Job kept(with_trainers);
  kept.settle(with_vision(), Unmapped::keep, FormatId::torch_dist, "huggingface");
  EXPECT_EQ(kept.names(kept.maps.core),
            (Lines{"final.weight 4", "vision.a.weight 3 5", "vision.b.bias 3", "vision.scale"}));
  EXPECT_EQ(kept.settled.target.root, "");
}

TEST(KeptTensors, HaveTheNamesOfTheProgramThatStartsFromThem) {
  std::string const kept = "keep = ['vision.*']\nkept = { bridge = { 'b.*' = 'vision.*' } }\n";
  std::string const swift =
      "keep = ['vision.*']\nkept = { bridge = { 'b.*' = 'vision.*' }, swift = { 's.*' = 'vision.*' } }\n";
  auto const settle = [](std::string const& map, std::string const& names,
                         megatron::TargetProgram program) {
    Job job(map);
    job.settle(with_vision(), Unmapped::keep, FormatId::torch_dist, names, program);
    return job.settled.target.trainer;
  };
  EXPECT_EQ(settle(swift, "auto", megatron::TargetProgram::ms_swift), "swift");
  EXPECT_EQ(settle(swift, "auto", megatron::TargetProgram::megatron_bridge), "bridge");
  EXPECT_NE(refusal([&] { settle(swift, "swift", megatron::TargetProgram::megatron_bridge); },
                    ErrorKind::usage)
                .find("\"megatron-bridge\" and names = \"swift\": it looks for the names of "
                      "\"bridge\""),
            std::string::npos);
  EXPECT_NE(
      refusal([&] { settle(kept, "auto", megatron::TargetProgram::ms_swift); }, ErrorKind::usage)
          .find("has no [kept.swift] for all of them"),
      std::string::npos);
}

TEST(KeptTensors, OfATrainerThatTheMapDoesNotKnowAreRefused) {
  Job job(with_trainers);
  EXPECT_EQ(refusal([&] { job.settle(with_vision(), Unmapped::keep, FormatId::megatron, "third"); },
                    ErrorKind::usage),
            "[target] names = \"third\": family.toml has no [kept.third]. Known here: auto, "
            "huggingface, first, other.");
  EXPECT_EQ(refusal(
                [&] {
                  job.settle(folder({{"vision.c", {3}}}, {}), Unmapped::keep, FormatId::megatron,
                             "other");
                },
                ErrorKind::usage),
            "[target] names = \"other\": [kept.other] of family.toml has no name for 'vision.c'. "
            "Add it to that table, or choose other names.");
}

TEST(KeptTensors, OfATrainerAreKnownByTheirNames) {
  test::MadeCheckpoint made(FormatId::megatron);
  made.add_share(SharePlace(), {{"eyes.a", {2, 2}}});
  Job back(with_trainers);
  back.settle(made.value, Unmapped::keep, FormatId::huggingface);
  EXPECT_EQ(back.names(back.maps.core), (Lines{"final.weight 4", "eyes.a 2 2"}));
  EXPECT_EQ(back.names(*back.maps.family), (Lines{"norm.weight 4", "vision.a 2 2"}));
  Job again(with_trainers);
  again.settle(made.value, Unmapped::keep);
  EXPECT_EQ(again.names(again.maps.core), (Lines{"final.weight 4", "eyes.a 2 2"}));
  EXPECT_EQ(again.settled.target.trainer, "first");
  Job without(with_trainers);
  without.settle(made.value, Unmapped::drop);
  EXPECT_EQ(without.settled.target.trainer, "");
  Model const model(*without.maps.family, without.maps.core, {Json::object(), "facts", 0});
  EXPECT_TRUE(Side(model, without.maps.core, {}).dropped("eyes.a"));
}

TEST(KeptTensors, ThatLookQuantisedAreKeptAsTheyAre) {
  Job job("keep = ['vision.*']\n");
  job.settle(folder({{"vision.q.weight", {4, 4}}}, {{"vision.q.weight_scale", {}}}),
             Unmapped::keep);
  MapFile const schemes = parse_map_file(
      "[quant.whole]\nvalues = { name = 'weight', dtype = 'BF16', blocks = [1, 1] }\nscale = { name = 'weight_scale', dtype = 'BF16', blocks = "
      "['all', "
      "'all'] }\n",
      "quant.toml");
  Model model(*job.maps.family, job.maps.core, {Json::object(), "facts", 0});
  model.set_schemes(evaluate_schemes(schemes, model));
  Side const side(model, *job.maps.family, {});
  QuantFinder finder(model, side);
  auto const find = [](std::string const& name) -> std::optional<FoundTensor> {
    if (name == "vision.q.weight") return FoundTensor{DType::bf16, {4, 4}};
    if (name == "vision.q.weight_scale") return FoundTensor{DType::bf16, {}};
    return std::nullopt;
  };
  finder.look({}, side.names(nullptr), find, "folder");
  finder.apply(model);
  EXPECT_EQ(Side(model, *job.maps.family, {}).names(nullptr).size(), 3U);
}

}  // namespace
}  // namespace reshard
