// State of optimizers in files of two saves, or damaged ones, and what it is refused with.

#include <cstring>
#include <functional>

#include <gtest/gtest.h>

#include "core/containers/dcp/directory.hpp"
#include "core/formats/dcp/named_settings.hpp"
#include "core/formats/megatron/mcore/extra_state.hpp"
#include "core/formats/torch_dist/fsdp_record.hpp"
#include "core/formats/torch_dist/keys.hpp"
#include "core/formats/torch_dist/state/flat_state.hpp"
#include "tests/support/expect_refused.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard::dcp {
namespace {

using pickle::Document;
using pickle::NodeId;

/// A checkpoint with objects and single numbers in one file.
class OneFile {
 public:
  OneFile() {
    checkpoint.files = {scratch_.empty_file("items", 0)};
    checkpoint.place = "/ckpt";
  }

  void add_bytes(std::string const& bytes) {
    File const file = File::open_for_writing(checkpoint.files[0]);
    file.write_at(file.size_bytes(), std::as_bytes(std::span(bytes)));
    end_ += bytes.size();
  }
  /// Pre: all tensors of the document together have `payload` bytes.
  void add_object(std::string name, Document document, std::size_t payload = 0) {
    std::string const bytes = torch_file_bytes(
        document, "archive", [payload](std::size_t) { return std::string(payload, '\1'); });
    checkpoint.stored.objects.push_back({std::move(name), {0, end_, bytes.size()}});
    add_bytes(bytes);
  }
  void add_object(std::string name, std::function<NodeId(Document&)> const& root) {
    Document document;
    document.root = root(document);
    add_object(std::move(name), std::move(document));
  }
  void add_number(std::string const& name, float value) {
    std::string bytes(sizeof value, '\0');
    std::memcpy(bytes.data(), &value, sizeof value);
    checkpoint.stored.add_whole(name, DType::f32, std::vector<Index>{}, {0, end_, bytes.size()});
    add_bytes(bytes);
  }

  Checkpoint checkpoint;

 private:
  inline static int made_ = 0;
  ScratchFolder scratch_{fmt::format("dcp_state_damage_{}", made_++)};
  std::uint64_t end_ = 0;
};

template <class Work>
void expect_refused(std::string_view words, Work&& work) {
  test::expect_refused(ErrorKind::source, words, std::forward<Work>(work));
}

// --- flat buffers ---------------------------------------------------------------------------

struct Vector {
  Index bucket;
  std::string slot;
  Index elements = 4;
};

void expect_buffers_refused(std::string_view words, std::vector<Vector> const& vectors) {
  Checkpoint checkpoint;
  std::vector<std::size_t> numbers;
  for (Vector const& one : vectors) {
    numbers.push_back(numbers.size());
    checkpoint.stored.add_whole(
        fmt::format("optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.bfloat16, "
                    "torch.float32).bucket_idx_{}.{}",
                    one.bucket, one.slot),
        DType::f32, std::vector<Index>{one.elements}, {0, 0, 16});
  }
  StoredView view;
  expect_refused(words, [&] { add_flat_buffers(checkpoint, numbers, view); });
}

TEST(FlatStateDamage, BucketsThatLackSomethingAreNamed) {
  expect_buffers_refused("belongs to bucket 1, and bucket 0 is missing", {{1, "param"}});
  expect_buffers_refused("is stored, but 'exp_avg' of the same bucket is missing",
                         {{0, "param"}, {0, "exp_avg"}, {1, "param"}});
  expect_buffers_refused("exp_avg' has the shape (5), and", {{0, "param"}, {0, "exp_avg", 5}});
}

/// torch's own AdamW counts the steps of each parameter.
TEST(FlatStateDamage, UnderNumbersIsThatOfOneAdam) {
  Checkpoint checkpoint;
  for (char const* name :
       {"model.decoder.final_layernorm.weight", "optimizer.fp32_from_fp16_params.0.0",
        "optimizer.optimizer.state.0.step"})
    checkpoint.stored.add_whole(name, DType::f32, std::vector<Index>{4}, {0, 0, 16});
  StoredView const view = torch_dcp_keys(checkpoint, "");
  EXPECT_EQ(view.fixed_state.size(), 2U);
  EXPECT_NE(view.state_fault.find("--ckpt-format torch_dcp"), std::string::npos);
}

// --- settings of groups of ranks ------------------------------------------------------------

NodeId settings_with_lr(Document& document, double lr) {
  NodeId const group = document.add_dict();
  document.set(group, "lr", document.add_real(lr));
  NodeId const settings = document.add_dict();
  document.set(settings, "param_groups", document.add_list({group}));
  return settings;
}

std::string group_object(int group) {
  return fmt::format("optimizer.distributed.dp_group_idx_{}.optimizer/shard_0_1", group);
}

RunRecord gathered(OneFile const& file, Document const& common) {
  RunRecord record;
  auto torch = std::make_shared<TorchFile>();
  torch->document = common;
  record.torch = std::move(torch);
  gather_settings(file.checkpoint, record);
  return record;
}

TEST(GroupSettings, ThatCannotBelongTogetherAreRefused) {
  Document common;
  common.root = common.add_dict();
  auto const gather = [&](OneFile const& file) { (void)gathered(file, common); };
  OneFile good;
  good.add_object(group_object(0), [](Document& d) { return settings_with_lr(d, 0.5); });
  expect_refused("belongs to an optimizer that the common state does not have",
                 [&] { gather(good); });

  common.set(common.root, "optimizer", common.add_dict());
  gather(good);
  good.add_object(group_object(1), [](Document& d) { return settings_with_lr(d, 0.25); });
  expect_refused("'lr' of a parameter group is 0.25 here and 0.5 in other ranks",
                 [&] { gather(good); });

  OneFile two;
  two.add_object(group_object(0), [](Document& d) {
    return d.add_list({d.add_dict(), d.add_dict()});
  });
  expect_refused("is a list of 2 values, expected one", [&] { gather(two); });
}

/// A common state with one optimizer, whose settings are elsewhere.
Document of_one_optimizer() {
  Document common;
  common.root = common.add_dict();
  common.set(common.root, "optimizer", common.add_dict());
  return common;
}

TEST(GroupSettings, AreThereForEveryGroupThatHasState) {
  Document const common = of_one_optimizer();
  OneFile file;
  for (int const group : {0, 1}) {
    file.add_object(group_object(group), [](Document& d) { return settings_with_lr(d, 0.5); });
    file.checkpoint.stored.add_whole(
        fmt::format("optimizer.distributed.dp_group_idx_{}.gbuf_idx_0.dtype_(torch.bfloat16, "
                    "torch.float32).bucket_idx_0.param",
                    group),
        DType::f32, std::vector<Index>{4}, {0, 0, 16});
  }
  EXPECT_NE(gathered(file, common).torch, nullptr);
  std::erase_if(file.checkpoint.stored.objects,
                [](StoredObject const& object) { return object.name == group_object(1); });
  expect_refused("no settings of the optimizer of its group of ranks (number 1)",
                 [&] { gathered(file, common); });
}

/// The loss scale of fp16, in the form of one group of ranks.
void add_scaler(OneFile& file, int group, std::int64_t tracker) {
  Document document;
  document.root = document.add_dict();
  document.set(document.root, "growth_tracker", document.add_int(tracker));
  document.set(document.root, "scale", document.add_tensor(DType::f32, {1}));
  file.add_object(fmt::format("optimizer.distributed.dp_group_idx_{}.grad_scaler/shard_0_1", group),
                  std::move(document), sizeof(float));
}

TEST(GroupSettings, TheLossScaleOfAllRanksGoesAlong) {
  Document const common = of_one_optimizer();
  OneFile file;
  for (int const group : {0, 1}) {
    file.add_object(group_object(group), [](Document& d) { return settings_with_lr(d, 0.5); });
    add_scaler(file, group, 3);
  }
  RunRecord const record = gathered(file, common);
  Document const& found = record.document();
  NodeId const scaler = found.find(found.find(found.root, "optimizer"), "grad_scaler");
  ASSERT_NE(scaler, pickle::no_node);
  EXPECT_EQ(found.at(found.find(scaler, "growth_tracker")).integer, 3);
  NodeId const scale = found.find(scaler, "scale");
  EXPECT_EQ(tensor_bytes(record, found.tensors[found.at(scale).index]), "\1\1\1\1");

  add_scaler(file, 2, 4);
  expect_refused("'growth_tracker' of the loss scale is another", [&] { gathered(file, common); });
}

// --- Megatron-FSDP, and state under names ---------------------------------------------------

TEST(FsdpRecordDamage, StepsThatDifferAndLargeSettingsAreRefused) {
  std::string const states = "optimizer.state.module.module.module.decoder.";
  OneFile steps;
  steps.add_object("args", [](Document& d) { return d.add_dict(); });
  steps.add_number(states + "a.step", 3);
  EXPECT_NE(read_fsdp_common(steps.checkpoint), nullptr);
  steps.add_number(states + "b.step", 4);
  expect_refused("is 4, and another parameter is at step 3",
                 [&] { read_fsdp_common(steps.checkpoint); });

  OneFile large;
  large.add_object("args", [](Document& d) { return d.add_dict(); });
  large.checkpoint.stored.objects.push_back(
      {group_setting_key("decoder.a", "lr"), {0, 0, (1 << 20) + 1}});
  expect_refused("has 1048577 bytes, more than a setting of a parameter group can have",
                 [&] { read_fsdp_common(large.checkpoint); });
}

TEST(NamedSettingsDamage, LargeSettingsAreRefused) {
  OneFile file;
  for (char const* name : {"w", "optim.state.w.exp_avg"})
    file.checkpoint.stored.add_whole(name, DType::f32, std::vector<Index>{4, 2}, {0, 0, 32});
  file.checkpoint.stored.objects.push_back({"optim.param_groups", {0, 0, (64 << 20) + 1}});
  StampedFiles files(file.checkpoint.files);
  expect_refused("has 67108865 bytes, more than a setting of an optimizer can have",
                 [&] { read_named_settings(file.checkpoint, "", files, LoneReader()); });
}

// --- states of modules ----------------------------------------------------------------------

constexpr char const* expert_object =
    "decoder.layers.3.mlp.experts.experts.linear_fc1._extra_state/shard_7_64";
constexpr char const* grouped_object =
    "decoder.layers.3.mlp.experts.linear_fc1._extra_state/shard_0_1";
constexpr std::size_t state_bytes = 2000;

/// A list of one state: so many bytes, as Transformer Engine has them for FP8.
Document fp8_state() {
  Document document;
  NodeId const bytes = document.add_tensor(DType::u8, {Index{state_bytes}});
  document.root = document.add_list({bytes});
  return document;
}

TEST(ModuleStatesDamage, OfExpertsCannotBeRegrouped) {
  OneFile single;
  single.add_object(expert_object, fp8_state(), state_bytes);
  ExtraStates merged("te", "grouped", ForeignClasses::refuse);
  expect_refused("holds FP8 state of one expert (2000 bytes), which cannot be merged",
                 [&] { merged.take_objects(single.checkpoint); });

  OneFile grouped;
  grouped.add_object(grouped_object, fp8_state(), state_bytes);
  ExtraStates states("te", "sequential", ForeignClasses::refuse);
  states.take_objects(grouped.checkpoint);
  expect_refused(
      "holds FP8 state of all experts of one ep rank (2000 bytes), which cannot be split", [&] {
        states.object_bytes("decoder.layers.3.mlp.experts.local_experts.7.linear_fc1._extra_state");
      });
  PipelineChunk chunk;
  chunk.decoder = {{0, 8, false}};
  states.use_source_keys(true);
  EXPECT_EQ(states.place(chunk, {{0, 64, false}, 1}, {}).size(), 1U);
  expect_refused("which cannot be regrouped from ep = 1 to ep = 2", [&] {
    states.place(chunk, {{0, 32, false}, 2}, {});
  });
}

TEST(ModuleStatesDamage, MustBeOnePlainValue) {
  std::string const filler(state_bytes, 'x');
  std::string const name = "decoder.layers.3.mlp.linear_fc1._extra_state";
  OneFile two;
  two.add_object(name + "/shard_0_1", [&](Document& d) {
    NodeId const text = d.add_string(filler);
    return d.add_list({text, text});
  });
  ExtraStates states("te", "sequential", ForeignClasses::refuse);
  expect_refused("is not a list of one state", [&] { states.take_objects(two.checkpoint); });

  OneFile foreign;
  foreign.add_object(name + "/shard_0_1", [&](Document& d) {
    NodeId const state = d.add_dict();
    d.set(state, "text", d.add_string(filler));
    return d.add_list({d.add_object("my.trainer", "State", state)});
  });
  ExtraStates others("te", "sequential", ForeignClasses::refuse);
  others.use_source_keys(true);
  others.take_objects(foreign.checkpoint);
  PipelineChunk chunk;
  chunk.decoder = {{0, 8, false}};
  expect_refused("the state of a module, holds \"my.trainer.State\", expected plain data",
                 [&] { others.place(chunk, {}, {}); });
}

}  // namespace
}  // namespace reshard::dcp
