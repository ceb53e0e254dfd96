#include "tests/support/written_target.hpp"

#include <algorithm>
#include <cstring>

#include "core/formats/huggingface/folder.hpp"
#include "stages/write/target_files.hpp"
#include "tests/support/plan_regions.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// Calls `run(from, to)` for every run of a region, both counted in its files.
template <class Run>
void each_run(Region const& region, std::span<ByteDim const> dims, std::int64_t from,
              std::int64_t to, Run const& run) {
  if (dims.empty()) return run(static_cast<std::size_t>(from), static_cast<std::size_t>(to));
  for (std::uint64_t i = 0; i < dims.front().count; ++i)
    each_run(region, dims.subspan(1),
             from + static_cast<std::int64_t>(i) * dims.front().from_stride,
             to + static_cast<std::int64_t>(i) * dims.front().to_stride, run);
}

void write_text(fs::path const& path, std::string const& text) {
  fs::create_directories(path.parent_path());
  write_text_file(path, text);
}

/// The files that lie beside the tensors.
void write_small_files(JobPlan const& plan, fs::path const& folder) {
  for (TextFile const& text : plan.texts)
    write_text(folder / text.path, text.make ? text.make() : text.text);
  for (SideCopy const& copy : plan.side_copies) {
    fs::create_directories((folder / copy.to).parent_path());
    fs::copy(copy.from, folder / copy.to, fs::copy_options::recursive);
  }
  if (!plan.reference) return;
  fs::path const to = folder / plan.reference_to;
  fs::create_directories(to);
  for (std::string const& name : plan.reference->sidecars)
    huggingface::copy_sidecar(*plan.reference, name, to);
}

}  // namespace

void write_target(JobPlan const& plan, std::vector<std::vector<std::byte>> const& sources,
                  fs::path const& folder) {
  RESHARD_EXPECT(plan.source.views.empty());
  std::vector<TargetLayout> layouts;
  for (TargetFile const& file : plan.files)
    layouts.push_back({folder / file.path, file.size_bytes, file.frame});
  RecordChecksums sums(layouts);
  std::vector<File> files;
  std::vector<fs::path> paths;
  for (TargetLayout const& layout : layouts) {
    make_folders(layout.path.parent_path());
    files.push_back(create_target_file(layout));
    paths.push_back(layout.path);
  }
  for (Region const& region : test::regions_of(plan.plan))
    each_run(region, plan.plan.dims_of(region), static_cast<std::int64_t>(region.src_offset_bytes),
             static_cast<std::int64_t>(region.dst_offset_bytes),
             [&](std::size_t from, std::size_t to) {
               auto const& source = sources.at(region.src_file);
               RESHARD_EXPECT(from + region.run_bytes <= source.size());
               auto const bytes = std::span(source).subspan(from, region.run_bytes);
               files[region.to].write_at(to, bytes);
               sums.add(region.to, to, bytes);
             });
  std::vector<std::uint64_t> const no_digests(plan.plan.tensor_bytes.size(), 0);
  FileSet open(paths, FileSet::Access::write);
  for (std::uint32_t f = 0; f < layouts.size(); ++f) {
    files[f].close();
    std::vector<std::uint32_t> const crc32 = sums.of_file(f);
    finish_target_file(open, f, layouts[f], frame_of(layouts[f], crc32, no_digests));
  }
  open.close();
  write_small_files(plan, folder);
}

std::vector<std::vector<std::byte>> bytes_of_files(FilePaths const& files) {
  std::vector<std::vector<std::byte>> all;
  for (fs::path const& file : files) all.push_back(reshard::bytes_of(file));
  return all;
}

GatheredTensor gathered(StoredTable const& stored, std::size_t number,
                        std::vector<std::vector<std::byte>> const& files) {
  StoredTensor const& tensor = stored.tensors[number];
  Index elements = 1;
  for (Index const extent : tensor.shape) elements *= extent;
  std::size_t const element = static_cast<std::size_t>(bits(tensor.dtype)) / 8;
  GatheredTensor result;
  result.bytes.resize(static_cast<std::size_t>(elements) * element);
  std::vector<int> holders(static_cast<std::size_t>(elements), 0);
  for (std::size_t c = tensor.first_chunk; c < tensor.first_chunk + tensor.chunk_count; ++c) {
    StoredChunk const& chunk = stored.chunks[c];
    auto const offsets = stored.offsets(chunk);
    auto const sizes = stored.sizes(chunk);
    auto const strides = stored.strides.find(c);
    Index count = 1;
    for (Index const extent : sizes) count *= extent;
    for (Index i = 0; i < count; ++i) {
      Index rest = i;
      Index place = 0;
      Index whole = 1;
      Index strided = 0;
      for (std::size_t d = sizes.size(); d-- > 0; rest /= sizes[d]) {
        place += (offsets[d] + rest % sizes[d]) * whole;
        whole *= tensor.shape[d];
        if (strides != stored.strides.end()) strided += rest % sizes[d] * strides->second[d];
      }
      Index const from = strides == stored.strides.end() ? i : strided;
      ++holders.at(static_cast<std::size_t>(place));
      std::vector<std::byte> const& file = files.at(chunk.item.file);
      std::size_t const at =
          stored.payload_offset_bytes(c) + static_cast<std::size_t>(from) * element;
      RESHARD_EXPECT(at + element <= file.size());
      std::memcpy(result.bytes.data() + static_cast<std::size_t>(place) * element, file.data() + at,
                  element);
    }
  }
  result.once = std::ranges::all_of(holders, [](int count) { return count == 1; });
  return result;
}

}  // namespace reshard::test
