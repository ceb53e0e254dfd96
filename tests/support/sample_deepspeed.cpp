#include "tests/support/sample_deepspeed.hpp"

#include "core/base/files/file.hpp"
#include "core/base/hash/crc32.hpp"
#include "core/containers/torch/torch_file.hpp"
#include "core/formats/deepspeed/folder.hpp"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using pickle::Document;
using pickle::NodeId;

constexpr std::string_view tag = "global_step7";
constexpr std::string_view states_prefix = "optimizer.state.";

/// A torch file in the making: its tensors in the order of the document.
struct TorchDraft {
  Document document;
  std::vector<std::vector<std::byte>> payloads;

  NodeId add(DType dtype, std::vector<Index> shape, std::vector<std::byte> bytes) {
    payloads.push_back(std::move(bytes));
    return document.add_tensor(dtype, std::move(shape));
  }

  void write(fs::path const& path) {
    TorchFilePlan const plan = plan_torch_file(document, path.stem().string());
    File const file = File::create(path);
    file.resize(plan.size_bytes);
    std::vector<std::uint32_t> sums;
    for (std::size_t i = 0; i < payloads.size(); ++i) {
      file.write_at(plan.storages[i].payload_offset_bytes, payloads[i]);
      sums.push_back(crc32(payloads[i]));
    }
    finish_torch_file(file, plan, sums);
  }
};

/// Model states. `trained` is the only parameter with state; nullptr for none.
void write_model_states(SampleCheckpoint& sample, SampleTensor const* trained, Index ranks) {
  TorchDraft draft;
  Document& document = draft.document;
  document.root = document.add_dict();
  NodeId const module = document.add_dict();
  for (SampleTensor const& one : sample.tensors)
    if (!one.name.starts_with(states_prefix))
      document.set(module, one.name, draft.add(one.dtype, one.shape, one.bytes));
  document.set(document.root, "module", module);
  if (trained != nullptr) {
    std::vector<NodeId> sizes;
    for (Index const size : trained->shape) sizes.push_back(document.add_int(size));
    NodeId const shapes = document.add_dict();
    document.set(shapes, trained->name, document.add_tuple(std::move(sizes)));
    document.set(document.root, "param_shapes", document.add_list({shapes}));
  }
  document.set(document.root, "dp_world_size", document.add_int(ranks));
  document.set(document.root, "global_steps", document.add_int(7));
  document.set(document.root, "ds_version", document.add_string("0.19.8"));
  sample.files.push_back(sample.path / tag / deepspeed::model_states_name);
  draft.write(sample.files.back());
}

/// ZeRO stage 2: what one of the ranks has of each slot.
void write_optimizer_states(SampleCheckpoint& sample, Index rank, Index ranks) {
  TorchDraft draft;
  Document& document = draft.document;
  document.root = document.add_dict();
  NodeId const outer = document.add_dict();
  NodeId const base = document.add_dict();
  NodeId const states = document.add_dict();
  NodeId const state = document.add_dict();
  NodeId masters = pickle::no_node;
  for (SampleTensor const& one : sample.tensors) {
    if (!one.name.starts_with(states_prefix)) continue;
    auto const size = one.bytes.size() / static_cast<std::size_t>(ranks);
    auto const begin = one.bytes.begin() + static_cast<std::ptrdiff_t>(size) * rank;
    std::vector<std::byte> part(begin, begin + static_cast<std::ptrdiff_t>(size));
    NodeId const vector = draft.add(DType::f32, {static_cast<Index>(size / 4)}, std::move(part));
    std::string const slot = one.name.substr(one.name.rfind('.') + 1);
    if (slot == "fp32")
      masters = vector;
    else
      document.set(state, slot, vector);
  }
  document.set(outer, "single_partition_of_fp32_groups", document.add_list({masters}));
  NodeId const number = document.add_int(0);
  document.at(states).items = {number, state};
  document.set(base, "state", states);
  document.set(outer, "base_optimizer_state", base);
  document.set(outer, "zero_stage", document.add_int(2));
  document.set(outer, "partition_count", document.add_list({document.add_int(ranks)}));
  document.set(document.root, "optimizer_state_dict", outer);
  sample.files.push_back(sample.path / tag /
                         fmt::format("bf16_zero_pp_rank_{}_mp_rank_00_optim_states.pt", rank));
  draft.write(sample.files.back());
}

SampleCheckpoint begun(fs::path const& folder) {
  SampleCheckpoint sample{folder, usual_tensors("model."), {}, folder / deepspeed::latest_name};
  fs::create_directories(folder / tag);
  write_text_file(folder / "config.json", "{\"model_type\": \"sample\"}\n");
  write_text_file(folder / "zero_to_fp32.py", "# a script\n");
  write_text_file(sample.written_last, tag);
  return sample;
}

}  // namespace

SampleCheckpoint make_deepspeed(fs::path const& folder) {
  SampleCheckpoint sample = begun(folder);
  write_model_states(sample, nullptr, 1);
  return sample;
}

SampleCheckpoint make_deepspeed_with_state(fs::path const& folder) {
  constexpr Index ranks = 2;
  SampleCheckpoint sample = begun(folder);
  SampleTensor const trained = sample.tensors.front();
  for (char const* slot : {"exp_avg", "exp_avg_sq", "fp32"})
    sample.tensors.push_back(
        {fmt::format("{}{}.{}", states_prefix, trained.name, slot), DType::f32, trained.shape,
         sample_bytes(static_cast<std::uint64_t>(slot[4]), trained.bytes.size() * 2)});
  write_model_states(sample, &trained, ranks);
  for (Index rank = 0; rank < ranks; ++rank) write_optimizer_states(sample, rank, ranks);
  return sample;
}

}  // namespace reshard::test
