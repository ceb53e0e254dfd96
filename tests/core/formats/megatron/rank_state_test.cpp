#include "core/formats/megatron/state/rank_state.hpp"

#include <gtest/gtest.h>

#include "tests/core/formats/megatron/support.hpp"

namespace reshard::megatron {
namespace {

using pickle::Document;
using pickle::NodeId;

template <class Read>
FileState read_back(Document document, Read const& read) {
  TempDirectory const root;
  auto const path = root.path() / "state.pt";
  write_torch_file(path, std::move(document));
  FileState const state = read(read_torch_file(File::open_for_reading(path)), path.string());
  // As it travels between ranks.
  std::string const packed = WireWriter().put(state).bytes();
  return WireReader(packed, "a state").all<FileState>();
}

void put(Document& document, NodeId dict, NodeId key, NodeId value) {
  document.at(dict).items.push_back(key);
  document.at(dict).items.push_back(value);
}

// --- distrib_optim.pt -----------------------------------------------------------------------

struct Buffer {
  Index elements = 10;
  Index stated = 10;
  DType dtype = DType::f32;
  std::vector<Index> moment = {10};
};

/// What one optimizer of distrib_optim.pt is.
NodeId add_optimizer(Document& d, Buffer const& buffer = {}, bool coalesced = true) {
  NodeId const states = d.add_dict();
  d.set(states, "param", d.add_tensor(buffer.dtype, {buffer.elements}));
  d.set(states, "exp_avg", d.add_tensor(DType::f32, buffer.moment));
  d.set(states, "numel_unpadded", d.add_int(buffer.stated));
  NodeId const by_dtype = d.add_dict();
  NodeId const bf16 = d.add_global("torch", "bfloat16");
  NodeId const pair = d.add_tuple({bf16, d.add_global("torch", "float32")});
  put(d, by_dtype, pair, states);
  NodeId const optimizer = d.add_dict();
  if (coalesced) d.set(optimizer, "buckets_coalesced", d.add_bool(true));
  put(d, optimizer, d.add_int(0), by_dtype);
  return optimizer;
}

FileState distributed(Document document) {
  return read_back(std::move(document), distributed_state);
}

std::string refused(Buffer const& buffer, bool coalesced = true) {
  Document d;
  d.root = add_optimizer(d, buffer, coalesced);
  return sentence_of([&] { distributed(d); });
}

TEST(DistributedState, HasABufferOfEachSlot) {
  Document d;
  d.root = add_optimizer(d);
  FileState const state = distributed(d);
  ASSERT_EQ(state.buffers.size(), 1U);
  EXPECT_EQ(state.buffers[0].chain, 0);
  EXPECT_EQ(state.buffers[0].weights, "bfloat16");
  ASSERT_EQ(state.buffers[0].states.size(), 2U);
  EXPECT_EQ(state.buffers[0].states[1].name, "exp_avg");
  EXPECT_EQ(state.buffers[0].states[1].shape, std::vector<Index>{10});
  EXPECT_EQ(state.records.size(), 2U) << "their bytes can be checked";
  EXPECT_EQ(state.settings, "");
}

TEST(DistributedState, OfAnotherRankIsNoneInAChain) {
  Document d;
  NodeId const experts = add_optimizer(d);
  d.root = d.add_list({d.add_none(), experts});
  FileState const state = distributed(d);
  ASSERT_EQ(state.buffers.size(), 1U);
  EXPECT_EQ(state.buffers[0].chain, 1);
}

TEST(DistributedState, OfDisagreeingSizesOrTypesIsRefused) {
  EXPECT_PRED2(contains, refused({.stated = 138}),
               "states numel_unpadded = 138, and 'param' has 10");
  EXPECT_PRED2(contains, refused({.moment = {9}}), "with 10 elements like 'param'");
  EXPECT_PRED2(contains, refused({.moment = {2, 5}}), "of shape (2, 5)");
  EXPECT_PRED2(contains, refused({.dtype = DType::bf16}), "expected a contiguous vector of F32");
  EXPECT_PRED2(contains, refused({}, false), "before Megatron-Core 0.7");
}

TEST(DistributedState, OfABufferWithoutTensorsIsRefused) {
  Document d;
  d.root = add_optimizer(d);
  NodeId const by_dtype = d.at(d.root).items.back();
  NodeId const states = d.at(by_dtype).items.back();
  d.erase(states, "param");
  d.erase(states, "exp_avg");
  EXPECT_PRED2(contains, sentence_of([&] { distributed(d); }), "buffer 0 has no tensors");
}

TEST(DistributedState, OfAnotherKindOfFileIsRefused) {
  for (auto const& make : std::vector<std::function<NodeId(Document&)>>{
           [](Document& d) { return d.add_int(3); }, [](Document& d) { return d.add_dict(); },
           [](Document& d) { return d.add_list({d.add_list()}); },
           [](Document& d) { return d.add_list(std::vector<NodeId>(65, d.add_none())); },
           [](Document& d) {
             NodeId const optimizer = d.add_dict();
             d.set(optimizer, "buckets_coalesced", d.add_bool(true));
             put(d, optimizer, d.add_int(0), d.add_none());
             return optimizer;
           },
           [](Document& d) {
             NodeId const optimizer = d.add_dict();
             d.set(optimizer, "buckets_coalesced", d.add_bool(true));
             NodeId const by_dtype = d.add_dict();
             put(d, by_dtype, d.add_string("bfloat16"), d.add_dict());
             put(d, optimizer, d.add_int(0), by_dtype);
             return optimizer;
           }}) {
    Document d;
    d.root = make(d);
    EXPECT_PRED2(contains, sentence_of([&] { distributed(d); }), "source.optimizer = \"drop\"");
  }
}

// --- model_optim_rng.pt ---------------------------------------------------------------------

/// {"optimizer": {"optimizer": {"state", "param_groups"}, "fp32_from_fp16_params"}} with two
/// groups.
struct Shard {
  std::vector<std::int64_t> decaying = {0, 1};
  std::size_t masters = 2;
  bool with_lr_tensor = false;
  int with_step = 3;              ///< how many parameters have a step
  bool master_is_number = false;  ///< the last one of the first group

  Document document() const {
    Document d;
    NodeId const state = d.add_dict();
    for (int i = 0; i < 3; ++i) {
      NodeId const one = d.add_dict();
      if (i < with_step) d.set(one, "step", d.add_tensor(DType::f32, {}));
      d.set(one, "exp_avg", d.add_tensor(DType::f32, {2, 3}));
      put(d, state, d.add_int(i), one);
    }
    NodeId const inner = d.add_dict();
    d.set(inner, "state", state);
    d.set(inner, "param_groups", d.add_list({group(d, 1.0, decaying), group(d, 0.0, {2})}));
    std::vector<NodeId> first;
    for (std::size_t m = 0; m < masters; ++m) first.push_back(d.add_tensor(DType::f32, {2, 3}));
    if (master_is_number) first.back() = d.add_int(1);
    NodeId const optimizer = d.add_dict();
    d.set(optimizer, "optimizer", inner);
    NodeId const second = d.add_list({d.add_tensor(DType::f32, {2, 3})});
    d.set(optimizer, "fp32_from_fp16_params", d.add_list({d.add_list(first), second}));
    d.root = d.add_dict();
    d.set(d.root, "optimizer", optimizer);
    return d;
  }

 private:
  NodeId group(Document& d, double decay, std::vector<std::int64_t> const& numbers) const {
    NodeId const result = d.add_dict();
    d.set(result, "wd_mult", d.add_real(decay));
    d.set(result, "lr", with_lr_tensor ? d.add_tensor(DType::f32, {}) : d.add_real(0.5));
    NodeId const params = d.add_list();
    for (std::int64_t const number : numbers) {
      NodeId const one = d.add_int(number);
      d.at(params).items.push_back(one);
    }
    d.set(result, "params", params);
    return result;
  }
};

FileState shard(Shard const& made) { return read_back(made.document(), shard_state); }

std::string refused(Shard const& made) {
  return sentence_of([&] { shard(made); });
}

TEST(ShardState, HasTheStatesOfEachParameterByGroup) {
  FileState const state = shard({});
  ASSERT_EQ(state.groups.size(), 2U);
  EXPECT_TRUE(state.groups[0].decays);
  EXPECT_FALSE(state.groups[1].decays);
  ASSERT_EQ(state.groups[0].members.size(), 2U);
  auto const& member = state.groups[0].members[1];
  ASSERT_EQ(member.size(), 2U) << "the step is no state of the parameter's shape";
  EXPECT_EQ(member[0].name, "fp32_param");
  EXPECT_EQ(member[1].name, "exp_avg");
  EXPECT_EQ(member[1].shape, (std::vector<Index>{2, 3}));
}

TEST(ShardState, SettingsLeaveOutWhatBelongsToParameters) {
  std::string const pickled = shard({}).settings;
  Document const settings = pickle::parse(std::as_bytes(std::span(pickled)), "settings");
  auto const& optimizers = settings.at(settings.root).items;
  ASSERT_EQ(optimizers.size(), 1U);
  NodeId const inner = settings.find(optimizers[0], "optimizer");
  ASSERT_NE(inner, pickle::no_node);
  EXPECT_EQ(settings.members(inner).size(), 1U);
  NodeId const groups = settings.find(inner, "param_groups");
  ASSERT_EQ(settings.at(groups).items.size(), 2U);
  EXPECT_EQ(settings.members(settings.at(groups).items[0]).size(), 2U) << "wd_mult and lr";
}

TEST(ShardState, ThatDisagreesWithItselfIsRefused) {
  EXPECT_PRED2(contains, refused({.decaying = {0, 0}}), "lists parameter 0 twice");
  EXPECT_PRED2(contains, refused({.decaying = {0, -1}}), "lists parameter -1 twice, or without");
  EXPECT_PRED2(contains, refused({.masters = 1}), "2 parameters and 1 master weights in group 0");
  EXPECT_PRED2(contains, refused(Shard{.with_lr_tensor = true}), "tensors among the settings");
  EXPECT_PRED2(contains, refused(Shard{.with_step = 2}),
               "2 of 3 parameters with optimizer state have a 'step'");
  EXPECT_PRED2(contains, refused(Shard{.master_is_number = true}),
               "has a master weight that is not a tensor");
}

TEST(ShardState, StepsThatDifferAreRefused) {
  TempDirectory const root;
  auto const path = root.path() / "steps";
  std::vector<float> const steps = {7, 8};
  File::create(path).write_at(0, std::as_bytes(std::span(steps)));
  FileState state;
  for (std::uint64_t const at : {std::uint64_t{0}, std::uint64_t{4}})
    state.steps.push_back({"step", DType::f32, {}, {}, at, sizeof(float)});
  EXPECT_PRED2(contains, sentence_of([&] { read_steps(state, File::open_for_reading(path)); }),
               "parameters of the optimizer are at step 7 and at step 8");
}

TEST(ShardState, OfAFileWithoutAnOptimizerIsEmpty) {
  Document d;
  d.root = d.add_dict();
  FileState const state = read_back(d, shard_state);
  EXPECT_TRUE(state.groups.empty());
  EXPECT_EQ(state.settings, "");
}

}  // namespace
}  // namespace reshard::megatron
