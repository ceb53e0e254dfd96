#include "core/formats/megatron/headers/shard_headers.hpp"

#include <utility>

#include "core/base/text/wire.hpp"

namespace reshard::megatron {
namespace {

/// Similar files have one size. The most reference files of a size, and in total.
constexpr std::size_t most_of_a_size = 4;
constexpr std::size_t most_known = 128;

/// Paths at which files of ranks differ independently of the model.
std::vector<pickle::Outline::Path> const free_paths = {
    {"args", "rank"}, {"args", "local_rank"}, {"rng_state"}};

/// Takes the checksums out of records.
std::vector<std::uint32_t> taken_crc32(std::vector<StorageRecord>& records) {
  std::vector<std::uint32_t> crc32;
  for (StorageRecord& record : records) crc32.push_back(std::exchange(record.crc32, 0).value_or(0));
  return crc32;
}

std::vector<std::uint64_t> offsets_of(std::vector<StorageRecord> const& records) {
  std::vector<std::uint64_t> offsets;
  for (StorageRecord const& record : records) offsets.push_back(record.offset_bytes);
  return offsets;
}

}  // namespace

HeaderBytes ShardHeaderReader::read(File const& file) {
  if (auto const found = compared(file)) return packed(*found);
  TorchFile const torch = read_torch_file(file);
  Found const found = parsed(file, torch);
  if (torch.container == TorchFile::Container::zip) remember(file, found);
  return packed(found);
}

ShardHeaderReader::Found ShardHeaderReader::parsed(File const& file, TorchFile const& torch) const {
  std::string const path = file.path().string();
  Found found;
  found.is_model = file.path().filename() != distributed_file_name;
  WireWriter common;
  FileState state;
  if (found.is_model) {
    ShardHeader header = shard_header(file, torch);
    found.records = offsets_of(header.records);
    PackedHeader const packed = pack(header);
    std::optional<ArgsSizes> sizes;
    if (header.args.members() != nullptr) {
      std::string const place = file.path().parent_path().string();
      refuse_weight_sharding(header.args, place);
      sizes = args_sizes(header.args, place);
    }
    Json const* const rank = header.args.find("rank");
    if (rank != nullptr && rank->integer() != nullptr) found.own.rank = *rank->integer();
    if (file.path() == first_) found.args = packed.args;
    found.own.crc32 = taken_crc32(header.records);
    common.text(packed.common).put(sizes);
    if (with_states_) state = shard_state(torch, path);
  } else {
    state = distributed_state(torch, path);
  }
  found.steps = state.steps;
  read_steps(state, file);
  found.own_state.torch_steps = std::exchange(state.torch_steps, std::nullopt);
  found.state_records = offsets_of(state.records);
  found.own_state.crc32 = taken_crc32(state.records);
  common.put(state);
  found.common = std::make_shared<std::string const>(std::move(common).take());
  return found;
}

std::optional<ShardHeaderReader::Found> ShardHeaderReader::compared(File const& file) const {
  if (file.path() == first_) return std::nullopt;
  std::vector<std::shared_ptr<Known const>> candidates;
  {
    std::lock_guard const lock(mutex_);
    auto const [begin, end] = known_.equal_range(file.size_bytes());
    for (auto at = begin; at != end; ++at) candidates.push_back(at->second);
  }
  for (auto const& known : candidates) {
    auto const own = known->outline.compare(file);
    if (!own) continue;
    Found const& model = known->found;
    Found found;
    found.common = model.common;
    found.is_model = model.is_model;
    found.own.rank = own->values.front().value_or(-1);
    for (std::size_t const record : known->records) found.own.crc32.push_back(own->crc32[record]);
    for (std::size_t const record : known->state_records)
      found.own_state.crc32.push_back(own->crc32[record]);
    FileState steps;
    steps.steps = model.steps;
    read_steps(steps, file);
    found.own_state.torch_steps = steps.torch_steps;
    return found;
  }
  return std::nullopt;
}

/// One of a size that was not seen before may have no like.
void ShardHeaderReader::remember(File const& file, Found const& found) {
  std::uint64_t const size = file.size_bytes();
  {
    std::lock_guard const lock(mutex_);
    if (sizes_.insert(size).second || known_.count(size) >= most_of_a_size ||
        known_.size() >= most_known)
      return;
  }
  auto known = std::make_shared<Known>(Known{TorchOutline(file, free_paths), found, {}, {}});
  for (std::uint64_t const offset : found.records)
    known->records.push_back(known->outline.record_at(offset));
  for (std::uint64_t const offset : found.state_records)
    known->state_records.push_back(known->outline.record_at(offset));
  std::lock_guard const lock(mutex_);
  known_.emplace(size, std::move(known));
}

HeaderBytes ShardHeaderReader::packed(Found const& found) {
  WireWriter out;
  if (found.is_model) out.text(found.args).put(found.own);
  out.put(found.own_state);
  return {std::move(out).take(), found.common};
}

Headers unpacked_headers(SharedHeaders const& packed, std::size_t shards) {
  Headers headers;
  constexpr std::size_t unknown = ~std::size_t{0};
  // Model files and others never have equal common bytes.
  std::vector<std::size_t> common_of(packed.commons().size(), unknown);
  std::vector<std::size_t> state_of(packed.commons().size(), unknown);
  for (std::size_t f = 0; f < packed.size(); ++f) {
    std::uint32_t const number = packed.common_of(f);
    if (state_of[number] == unknown) {
      WireReader in(packed.commons()[number], "the header of a file");
      if (f < shards) {
        common_of[number] = headers.commons.size();
        headers.commons.push_back(unpack_common(in.text()));
        headers.sizes.push_back(in.get<std::optional<ArgsSizes>>());
      }
      state_of[number] = headers.states.different.size();
      headers.states.different.push_back(in.get<FileState>());
      in.finish();
    }
    WireReader in(packed.own(f), "the header of a file");
    if (f < shards) {
      std::string_view const args = in.text();
      if (f == 0) headers.args = unpack_args(args);
      headers.own.push_back(in.get<OwnHeader>());
      headers.common_of.push_back(common_of[number]);
    }
    headers.states.number.push_back(state_of[number]);
    headers.states.own.push_back(in.get<OwnFileState>());
    in.finish();
  }
  return headers;
}

}  // namespace reshard::megatron
