#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stages/plan/job_plan.hpp"
#include "tests/support/made_models.hpp"
#include "tests/support/plan_regions.hpp"

/// What tests of whole plans share.
namespace reshard::test {

using Lines = std::vector<std::string>;

inline std::filesystem::path maps_folder() {
  return std::filesystem::path(RESHARD_SOURCE_DIR) / "configs" / "models";
}

inline PlanRequest request_for(FormatId format, MeshSizes const& mesh = {}) {
  PlanRequest request;
  request.target.format = format;
  request.target.mesh = mesh;
  request.target.pipeline.ranks = mesh.pp;
  request.target.pipeline.chunks_per_rank = mesh.vpp;
  request.read.library = MapLibrary({maps_folder()});
  request.options.huggingface.shard_bytes = request.options.hdf5.part_bytes = 1 << 20;
  request.options.dist.chunk_bytes = 1 << 20;
  request.target.tool_version = "1.0";
  return request;
}

inline JobPlan planned(MadeCheckpoint const& source, PlanRequest const& request) {
  return make_job_plan(source.value, request, PlanLimits{});
}

/// What planning refuses: the sentence. Another kind is a failure of the test.
inline std::string refused(ErrorKind kind, std::function<void()> const& work) {
  try {
    work();
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), kind) << error.sentence();
    return error.sentence();
  }
  ADD_FAILURE() << "nothing was refused";
  return {};
}

inline void expect_refused(MadeCheckpoint const& source, PlanRequest const& request, ErrorKind kind,
                           std::string_view words) {
  std::string const sentence = refused(kind, [&] { planned(source, request); });
  EXPECT_NE(sentence.find(words), std::string::npos) << sentence;
}

inline Lines paths_of(JobPlan const& plan) {
  Lines paths;
  for (TargetFile const& file : plan.files) paths.push_back(file.path.string());
  return paths;
}

/// The paths of the small files, sorted.
inline Lines texts_of(JobPlan const& plan) {
  Lines paths;
  for (TextFile const& text : plan.texts) paths.push_back(text.path.string());
  std::ranges::sort(paths);
  return paths;
}

/// The small file of this name; a failure of the test where there is none.
inline std::string text_named(JobPlan const& plan, std::string_view name) {
  for (TextFile const& text : plan.texts)
    if (text.path.filename() == name) return text.make ? text.make() : text.text;
  ADD_FAILURE() << "no " << name;
  return {};
}

inline std::uint64_t bytes_of(Checkpoint const& source) {
  std::uint64_t bytes = 0;
  for (StoredChunk const& chunk : source.stored.chunks) bytes += chunk.item.size_bytes;
  return bytes;
}

/// Regions move all bytes of the plan, inside their files, and nothing is written twice.
inline void expect_sound(JobPlan const& plan) {
  struct Run {
    std::uint64_t file, begin, end;
    auto operator<=>(Run const&) const = default;
  };
  std::vector<Run> runs;
  std::uint64_t moved = 0;
  std::function<void(Region const&, std::span<ByteDim const>, std::int64_t)> const walk =
      [&](Region const& region, std::span<ByteDim const> dims, std::int64_t at) {
        if (dims.empty()) {
          auto const begin = static_cast<std::uint64_t>(at);
          runs.push_back({region.to, begin, begin + region.run_bytes});
          moved += region.run_bytes;
          return;
        }
        for (std::uint64_t i = 0; i < dims.front().count; ++i)
          walk(region, dims.subspan(1), at + static_cast<std::int64_t>(i) * dims.front().to_stride);
      };
  for (Region const& region : test::regions_of(plan.plan))
    walk(region, plan.plan.dims_of(region), static_cast<std::int64_t>(region.dst_offset_bytes));
  EXPECT_EQ(moved, plan.plan.target_bytes);
  std::ranges::sort(runs);
  for (std::size_t r = 0; r < runs.size(); ++r) {
    ASSERT_LE(runs[r].end, plan.files[runs[r].file].size_bytes);
    bool const behind =
        r == 0 || runs[r - 1].file != runs[r].file || runs[r - 1].end <= runs[r].begin;
    ASSERT_TRUE(behind) << "bytes of one place are written twice";
  }
}

}  // namespace reshard::test
