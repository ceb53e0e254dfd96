#include "stages/plan/source/catalog/stored_shares.hpp"

#include <map>
#include <utility>

#include "core/base/tables/counted.hpp"
#include "core/formats/megatron/mcore/mesh.hpp"

namespace reshard {

StoredShares::StoredShares(Checkpoint const& source, StoredView const& view,
                           std::span<PipelineChunk const> chunks)
    : source_(source), view_(view), chunks_(chunks) {
  if (source.storage != Storage::shares) return;
  check_chunks();
  find_alike();
}

void StoredShares::check_chunks() const {
  std::vector<std::size_t> counts(source_.files.size(), 0);
  for (SharePlace const& place : source_.shares.places) ++counts[place.file];
  for (std::size_t f = 0; f < counts.size(); ++f)
    if (counts[f] > 0 && counts[f] != source_.shares.chunks_per_file)
      fail(ErrorKind::source,
           "{}: holds {}, the args give {} per pipeline rank. The file belongs to "
           "another run: restore this run's own.",
           source_.files[f].string(), counted(counts[f], "model chunk"),
           source_.shares.chunks_per_file);
}

std::size_t StoredShares::size() const {
  return source_.storage == Storage::shares ? source_.shares.places.size() : 1;
}

void StoredShares::find_alike() {
  std::map<std::pair<std::size_t, std::size_t>, std::size_t> first;  // by table and chunk
  for (std::size_t p = 0; p < source_.shares.places.size(); ++p) {
    SharePlace const& place = source_.shares.places[p];
    alike_.push_back(
        first.emplace(std::pair(place.alike.value_or(p), place.chunk), p).first->second);
  }
}

std::size_t StoredShares::first_alike(std::size_t number) const {
  return alike_.empty() ? number : alike_[number];
}

StoredShare StoredShares::without_names(std::size_t number) const {
  StoredShare share;
  if (source_.storage != Storage::shares) {
    share.where = source_.place;
    return share;
  }
  SharePlace const& at = source_.shares.places[number];
  share.chunk = at.chunk;
  share.place = {at.at, &chunks_[share.chunk]};
  share.where = source_.files[at.file].string();
  share.first_tensor = at.first_tensor;
  return share;
}

StoredShare StoredShares::operator[](std::size_t number) const {
  StoredShare share = without_names(number);
  if (source_.storage != Storage::shares) {
    share.tensors.reserve(view_.weights.size());
    for (auto const& [name, at] : view_.weights) share.tensors.emplace(name, at);
    return share;
  }
  SharePlace const& at = source_.shares.places[number];
  for (std::size_t t = at.first_tensor; t < at.first_tensor + at.tensor_count; ++t)
    share.tensors.emplace(source_.stored.tensors.name(t), t);
  return share;
}

std::vector<std::vector<StoredName>> StoredShares::names(Side const& side) const {
  std::vector<std::vector<StoredName>> result;
  if (source_.storage != Storage::shares)
    result.push_back(side.names(nullptr));
  else
    for (PipelineChunk const& chunk : chunks_) result.push_back(side.names(&chunk));
  return result;
}

FindTensor finder_over(NameTable const& table, StoredTable const& stored) {
  return [&table, &stored](std::string const& name) -> std::optional<FoundTensor> {
    auto const found = table.find(name);
    if (found == table.end()) return std::nullopt;
    StoredTensor const& tensor = stored.tensors[found->second];
    return FoundTensor{tensor.dtype, tensor.shape};
  };
}

std::vector<PipelineChunk> source_chunks(Checkpoint const& source, Json const& args,
                                         Index decoder_layers, Index mtp_layers) {
  PipelineSpec spec = megatron::pipeline_spec(args, megatron::sizes_of(source.shares.mesh));
  spec.decoder_layers = static_cast<int>(decoder_layers);
  spec.mtp_layers = static_cast<int>(mtp_layers);
  try {
    return pipeline_chunks(spec);
  } catch (Error const& error) {
    throw Error(ErrorKind::source, error.sentence()).in(source.place + ", args");
  }
}

}  // namespace reshard
