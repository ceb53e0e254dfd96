// A small model goes from its Hugging Face folder into every format and back, in this process: the
// bytes that come back are those that went.

#include "tests/stages/plan/planning.hpp"
#include "tests/support/scratch_folder.hpp"
#include "tests/support/written_target.hpp"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

struct Way {
  std::string family;
  FormatId format;
  MeshSizes mesh;
  megatron::TargetModel model = megatron::TargetModel::as_source;
};

void PrintTo(Way const& way, std::ostream* out) {
  *out << way.family << " " << name(way.format)
       << (way.model == megatron::TargetModel::hybrid ? " hybrid" : "");
}

std::vector<Way> ways() {
  std::vector<Way> all;
  for (char const* family : {"llama", "qwen3", "qwen3_moe"})
    for (FormatId const format : {FormatId::megatron, FormatId::torch_dist, FormatId::fsdp_dtensor,
                                  FormatId::dcp, FormatId::hdf5, FormatId::huggingface}) {
      bool const experts = std::string_view(family) == "qwen3_moe";
      all.push_back(
          {family, format, {.tp = 2, .pp = 2, .ep = experts ? 4 : 1, .etp = experts ? 1 : 2}});
      if (format_of(format).target().names == NameOwner::megatron)
        all.push_back({family, format, all.back().mesh, megatron::TargetModel::hybrid});
    }
  return all;
}

class RoundTrip : public testing::TestWithParam<Way> {
 protected:
  using Contents = std::map<std::string, std::vector<std::byte>>;

  static Contents contents(Checkpoint const& checkpoint,
                           std::vector<std::vector<std::byte>> const& files) {
    Contents result;
    for (std::size_t t = 0; t < checkpoint.stored.tensors.size(); ++t)
      result[checkpoint.stored.tensors[t].name] = gathered(checkpoint.stored, t, files).bytes;
    return result;
  }

  /// Bytes that no other place of the files has nearby.
  static std::vector<std::vector<std::byte>> payload(Checkpoint const& checkpoint) {
    std::vector<std::vector<std::byte>> files(checkpoint.files.size());
    for (StoredChunk const& chunk : checkpoint.stored.chunks) {
      std::vector<std::byte>& file = files[chunk.item.file];
      file.resize(std::max(file.size(), chunk.item.offset_bytes + chunk.item.size_bytes));
    }
    for (std::size_t f = 0; f < files.size(); ++f)
      for (std::size_t i = 0; i < files[f].size(); ++i)
        files[f][i] = static_cast<std::byte>((i * 7 + i / 251 * 3 + f * 31 + 1) % 251);
    return files;
  }

  Checkpoint write(Checkpoint const& source, std::vector<std::vector<std::byte>> const& bytes,
                   PlanRequest const& request, char const* folder) const {
    JobPlan const plan = make_job_plan(source, request, PlanLimits{});
    expect_sound(plan);
    write_target(plan, bytes, scratch_.path() / folder);
    return open_checkpoint(scratch_.path() / folder, request.target.format, {}, LoneReader());
  }

  /// Attention and MLP are layers of their own, and args say which.
  static void expect_pairs(Checkpoint const& target) {
    Json const pattern = fact(args_of(target), "hybrid_layer_pattern");
    ASSERT_NE(pattern.text(), nullptr);
    EXPECT_NE(pattern.text()->find('|'), std::string::npos) << *pattern.text();
    for (StoredTensor const& tensor : target.stored.tensors) {
      std::string_view const word = "decoder.layers.";
      std::size_t const at = tensor.name.find(word);
      if (at == std::string::npos) continue;
      int const layer = std::stoi(tensor.name.substr(at + word.size()));
      bool const attention = tensor.name.find("self_attention.") != std::string::npos;
      EXPECT_EQ(layer % 2 == 0, attention) << tensor.name.text();
    }
  }

  ScratchFolder scratch_{"round_trip"};
};

/// In another format and layout, and back.
TEST(Hybrid, AGptModelThereAndBackIsTheSame) {
  ScratchFolder const scratch{"hybrid"};
  MadeCheckpoint const made = made_huggingface(sample_model("qwen3_moe"));
  auto const write = [&](Checkpoint const& source, std::vector<std::vector<std::byte>> const& bytes,
                         FormatId format, MeshSizes mesh, megatron::TargetModel model,
                         char const* folder) {
    PlanRequest request = request_for(format, mesh);
    request.options.named.model = model;
    JobPlan const plan = make_job_plan(source, request, PlanLimits{});
    expect_sound(plan);
    write_target(plan, bytes, scratch.path() / folder);
    return open_checkpoint(scratch.path() / folder, format, {}, LoneReader());
  };
  std::vector<std::vector<std::byte>> first(made.value.files.size());
  for (StoredChunk const& chunk : made.value.stored.chunks) {
    auto& file = first[chunk.item.file];
    file.resize(std::max(file.size(), chunk.item.offset_bytes + chunk.item.size_bytes));
  }
  for (std::size_t f = 0; f < first.size(); ++f)
    for (std::size_t i = 0; i < first[f].size(); ++i)
      first[f][i] = static_cast<std::byte>((i * 13 + f * 5 + i / 253) % 251);
  MeshSizes const small{.tp = 1, .pp = 2, .ep = 2, .etp = 1};
  MeshSizes const other{.tp = 2, .pp = 1, .ep = 1, .etp = 2};
  Checkpoint const gpt =
      write(made.value, first, FormatId::megatron, small, megatron::TargetModel::as_source, "gpt");
  Checkpoint const hybrid = write(gpt, bytes_of_files(gpt.files), FormatId::torch_dist, other,
                                  megatron::TargetModel::hybrid, "hybrid");
  Checkpoint const cut = write(hybrid, bytes_of_files(hybrid.files), FormatId::megatron, small,
                               megatron::TargetModel::as_source, "cut");  // stays a hybrid model
  Checkpoint const back = write(cut, bytes_of_files(cut.files), FormatId::megatron, small,
                                megatron::TargetModel::gpt, "back");
  auto const layers = [](Checkpoint const& checkpoint) {
    return fact(args_of(checkpoint), "num_layers").dump();
  };
  EXPECT_EQ(layers(gpt), layers(back));
  EXPECT_EQ(layers(hybrid), layers(cut));
  EXPECT_EQ(std::stoi(layers(hybrid)), 2 * std::stoi(layers(gpt)));
  EXPECT_TRUE(fact(args_of(back), "hybrid_layer_pattern").is_null());
  auto const before = bytes_of_files(gpt.files);
  auto const after = bytes_of_files(back.files);
  ASSERT_EQ(back.stored.tensors.size(), gpt.stored.tensors.size());
  for (std::size_t t = 0; t < gpt.stored.tensors.size(); ++t) {
    EXPECT_EQ(back.stored.tensors[t].name, gpt.stored.tensors[t].name);
    EXPECT_EQ(gathered(back.stored, t, after).bytes, gathered(gpt.stored, t, before).bytes)
        << gpt.stored.tensors[t].name.text();
  }
}

TEST_P(RoundTrip, BringsEveryByteBack) {
  MadeCheckpoint const source = made_huggingface(sample_model(GetParam().family));
  auto const bytes = payload(source.value);
  PlanRequest there = request_for(GetParam().format, GetParam().mesh);
  there.options.named.model = GetParam().model;
  Checkpoint const target = write(source.value, bytes, there, "there");
  EXPECT_EQ(target.format->id(), GetParam().format);
  EXPECT_TRUE(target.format->describe(scratch_.path() / "there", {}).sound);
  if (there.options.named.model == megatron::TargetModel::hybrid) expect_pairs(target);

  PlanRequest back = request_for(FormatId::huggingface);
  if (GetParam().format != FormatId::dcp) back.read.map = GetParam().family;
  Checkpoint const returned = write(target, bytes_of_files(target.files), back, "back");
  EXPECT_EQ(contents(returned, bytes_of_files(returned.files)), contents(source.value, bytes));
  EXPECT_EQ(returned.model.config, source.value.model.config);
}

INSTANTIATE_TEST_SUITE_P(Formats, RoundTrip, testing::ValuesIn(ways()), [](auto const& way) {
  return fmt::format("{}_{}{}", way.param.family, name(way.param.format),
                     way.param.model == megatron::TargetModel::hybrid ? "_hybrid" : "");
});

}  // namespace
}  // namespace reshard::test
