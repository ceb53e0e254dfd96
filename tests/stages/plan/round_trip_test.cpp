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
};

void PrintTo(Way const& way, std::ostream* out) { *out << way.family << " " << name(way.format); }

std::vector<Way> ways() {
  std::vector<Way> all;
  for (char const* family : {"llama", "qwen3", "qwen3_moe"})
    for (FormatId const format : {FormatId::megatron, FormatId::torch_dist, FormatId::fsdp_dtensor,
                                  FormatId::dcp, FormatId::hdf5, FormatId::huggingface}) {
      bool const experts = std::string_view(family) == "qwen3_moe";
      all.push_back(
          {family, format, {.tp = 2, .pp = 2, .ep = experts ? 4 : 1, .etp = experts ? 1 : 2}});
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
                   TargetRequest const& request, char const* folder) const {
    JobPlan const plan = make_job_plan(source, request, PlanLimits{});
    expect_sound(plan);
    write_target(plan, bytes, scratch_.path() / folder);
    return open_checkpoint(scratch_.path() / folder, request.format, {}, LoneReader());
  }

  ScratchFolder scratch_{"round_trip"};
};

TEST_P(RoundTrip, BringsEveryByteBack) {
  MadeCheckpoint const source = made_huggingface(sample_model(GetParam().family));
  auto const bytes = payload(source.value);
  TargetRequest there = request_for(GetParam().format, GetParam().mesh);
  Checkpoint const target = write(source.value, bytes, there, "there");
  EXPECT_EQ(target.format->id(), GetParam().format);
  EXPECT_TRUE(target.format->describe(scratch_.path() / "there", {}).sound);

  TargetRequest back = request_for(FormatId::huggingface);
  if (GetParam().format != FormatId::dcp) back.map = GetParam().family;
  Checkpoint const returned = write(target, bytes_of_files(target.files), back, "back");
  EXPECT_EQ(contents(returned, bytes_of_files(returned.files)), contents(source.value, bytes));
  EXPECT_EQ(returned.config, source.value.config);
}

INSTANTIATE_TEST_SUITE_P(Formats, RoundTrip, testing::ValuesIn(ways()), [](auto const& way) {
  return fmt::format("{}_{}", way.param.family, name(way.param.format));
});

}  // namespace
}  // namespace reshard::test
