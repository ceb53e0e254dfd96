#include "tests/support/plan_world.hpp"

#include <cstring>

namespace reshard::test {

std::uint32_t element_value(TensorId tensor,
                            std::vector<std::pair<AxisId, Index>> const& coordinates) {
  auto hash = static_cast<std::uint64_t>(reshard::index(tensor) + 1) * 11400714819323198485U;
  for (auto const& [axis, index] : coordinates)
    hash ^= (hash << 6U) + (hash >> 2U) + std::uint64_t{axis} * 1000003U +
            static_cast<std::uint64_t>(index) * 7919U;
  return static_cast<std::uint32_t>(hash ^ (hash >> 29U));
}

namespace {

class Filler {
 public:
  Filler(Model const& model, Side const& side, DType dtype)
      : model_(model),
        side_(side),
        dtype_(dtype),
        element_(static_cast<std::size_t>(bits(dtype) / 8)) {
    world_.catalog.tensors.resize(model.tensors().size());
  }

  void begin_file() {
    world_.catalog.files.push_back("file" + std::to_string(world_.catalog.files.size()));
    world_.files.emplace_back();
  }

  void add(StoredName const& name, SidePlace const& place) {
    EntryLayout const& layout = side_.layout(name.entry, place);
    Index volume = 1;
    for (Index const extent : layout.file_shape) volume *= extent;
    auto& bytes = world_.files.back();
    std::size_t const offset = bytes.size() + 24;  // a gap, as a zip header would be
    bytes.resize(offset + static_cast<std::size_t>(volume) * element_, std::byte{0});
    auto const blob = static_cast<std::uint32_t>(world_.catalog.blobs.size());
    world_.catalog.blobs.add(
        {static_cast<std::uint32_t>(world_.files.size() - 1), offset, dtype_, name.name});
    for (Piece const& piece : side_.pieces(name, place)) {
      fill(piece, offset);
      world_.catalog.tensors[index(piece.tensor)].add(piece, blob, name.copy);
    }
  }

  World take() {
    world_.blank = world_.files;
    for (auto const& [file, at] : touched_)
      std::memset(world_.blank[file].data() + at, 0xee, element_);
    return std::move(world_);
  }

 private:
  void fill(Piece const& piece, std::size_t offset) {
    std::vector<Index> index(piece.digits.size(), 0);
    for (;;) {
      Index at = piece.offset;
      std::vector<std::pair<AxisId, Index>> coordinates;
      for (LogicalAxis const& axis : model_.tensor(piece.tensor).axes) {
        Index value = 0;
        for (std::size_t d = 0; d < piece.digits.size(); ++d)
          if (piece.digits[d].axis == axis.axis)
            value += (piece.digits[d].first + index[d]) * piece.digits[d].div;
        coordinates.emplace_back(axis.axis, value);
      }
      for (std::size_t d = 0; d < index.size(); ++d) at += index[d] * piece.digits[d].stride;
      std::uint32_t const value = element_value(piece.tensor, coordinates);
      std::size_t const place = offset + static_cast<std::size_t>(at) * element_;
      std::memcpy(world_.files.back().data() + place, &value, element_);
      touched_.emplace_back(world_.files.size() - 1, place);
      std::size_t d = index.size();
      while (d > 0 && ++index[d - 1] == piece.digits[d - 1].count) index[--d] = 0;
      if (d == 0) return;
    }
  }

  Model const& model_;
  Side const& side_;
  DType dtype_;
  std::size_t element_;
  World world_;
  std::vector<std::pair<std::size_t, std::size_t>> touched_;
};

}  // namespace

World make_world(Model const& model, Side const& side, SampleMesh const& at, DType dtype) {
  PipelineSpec spec;
  spec.ranks = at.mesh.pp;
  spec.chunks_per_rank = at.mesh.vpp;
  spec.first_stage_layers = at.first_stage_layers;
  spec.last_stage_layers = at.last_stage_layers;
  spec.decoder_layers = 6;
  auto const chunks = pipeline_chunks(spec);
  Filler filler(model, side, dtype);
  for (int pp = 0; pp < at.mesh.pp; ++pp)
    for (MeshPlace const& place : at.mesh.places()) {
      filler.begin_file();
      for (int v = 0; v < at.mesh.vpp; ++v) {
        PipelineChunk const& chunk = chunks[static_cast<std::size_t>(v * at.mesh.pp + pp)];
        for (StoredName const& name : side.names(&chunk)) filler.add(name, {place, &chunk});
      }
    }
  return filler.take();
}

World make_global_world(Model const& model, Side const& side, DType dtype) {
  Filler filler(model, side, dtype);
  filler.begin_file();
  for (StoredName const& name : side.names(nullptr)) filler.add(name, {});
  return filler.take();
}

namespace {
void copy_level(StridedCopy const& copy, std::size_t level, std::uint64_t from, std::uint64_t to,
                std::byte* staging) {
  if (level == copy.dims.size()) {
    std::memcpy(staging + to, staging + from, copy.run_bytes);
    return;
  }
  ByteDim const& dim = copy.dims[level];
  for (std::uint64_t i = 0; i < dim.count; ++i)
    copy_level(copy, level + 1, from + i * static_cast<std::uint64_t>(dim.from_stride),
               to + i * static_cast<std::uint64_t>(dim.to_stride), staging);
}
}  // namespace

void copy_strided_bytes(StridedCopy const& copy, std::vector<std::byte>& staging) {
  copy_level(copy, 0, copy.from, copy.to, staging.data());
}

void carry_out(RoundWork const& round, std::vector<std::byte>& staging, Files const& source,
               Files& target) {
  staging.assign(round.staging_bytes, std::byte{0xdd});
  for (Extent const& read : round.reads)
    std::memcpy(staging.data() + read.at, source.at(read.file).data() + read.offset_bytes,
                read.bytes);
  for (StridedCopy const& copy : round.copies)
    copy_level(copy, 0, copy.from, copy.to, staging.data());
  for (Extent const& write : round.writes)
    std::memcpy(target.at(write.file).data() + write.offset_bytes, staging.data() + write.at,
                write.bytes);
}

}  // namespace reshard::test
