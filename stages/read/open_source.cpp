#include "stages/read/open_source.hpp"

#include "core/base/files/sight.hpp"
#include "core/formats/headers/shared_headers.hpp"
#include "core/transport/shared_sight.hpp"

namespace reshard {
namespace {

/// Appends the files of another checkpoint with what is known of each.
void add_files(Checkpoint const& other, Checkpoint& source) {
  source.files.add(other.files);
  source.stamps.taken.insert(source.stamps.taken.end(), other.stamps.taken.begin(),
                             other.stamps.taken.end());
  source.stamps.rank.insert(source.stamps.rank.end(), other.stamps.rank.begin(),
                            other.stamps.rank.end());
}

}  // namespace

void RankReaders::together(std::function<void()> const& work) const {
  reshard::together(comm_, work);
}

void RankReaders::together_seeing(std::function<void()> const& work) const {
  reshard::together_seeing(comm_, work);
}

std::vector<std::string> RankReaders::all_gather(std::string const& bytes) const {
  return comm_.all_gather(bytes);
}

Checkpoint open_source(std::filesystem::path const& path, FormatId wanted, OpenChoice const& choice,
                       Comm const& comm) {
  return open_checkpoint(path, wanted, choice, RankReaders(comm));
}

void add_adapter(Checkpoint& source, std::filesystem::path const& adapter, Comm const& comm) {
  source.others.adapter = std::make_shared<Checkpoint const>(open_source(adapter, comm));
  add_files(*source.others.adapter, source);
}

void settle_adapter(Checkpoint& source, WrappedChoice const& choice, Comm const& comm) {
  together_seeing(comm, [&] {
    bool const taken = take_wrapped(source, choice);
    if (!taken && choice.use != AdapterUse::keep && choice.config.empty())
      fail(ErrorKind::usage,
           "[model] adapter: {} holds no model that peft has wrapped an adapter around. {}.",
           source.place,
           choice.use == AdapterUse::merge ? "Name the adapter's folder with source.adapter"
                                           : "Remove the key");
  });
  if (choice.use == AdapterUse::merge && !source.others.adapter)
    add_adapter(source, choice.config, comm);
}

void add_averaged(Checkpoint& source, std::filesystem::path const& path, FormatId wanted,
                  OpenChoice const& choice, Comm const& comm) {
  source.others.averaged.push_back(
      std::make_shared<Checkpoint const>(open_source(path, wanted, choice, comm)));
  add_files(*source.others.averaged.back(), source);
}

void add_new_rows(Checkpoint& source, std::filesystem::path const& file, Comm const& comm) {
  auto rows = std::make_shared<Checkpoint>();
  rows->place = file.string();
  rows->files = {file};
  together_seeing(comm, [&] {
    if (sees_folder(file))
      fail(ErrorKind::usage,
           "[target] rows_from = {}: it is a folder, and rows are read from one safetensors file. "
           "Name the file.",
           json_quoted(rows->place));
  });
  auto headers = shared_safetensors_headers(*rows, RankReaders(comm));
  for (FileTensor& tensor : headers.front().tensors) {
    RESHARD_EXPECT(tensor.strides.empty());
    rows->stored.add_whole(std::move(tensor.name), tensor.dtype, std::move(tensor.shape),
                           {0, tensor.offset_bytes, tensor.size_bytes});
  }
  source.others.new_rows = rows;
  add_files(*rows, source);
}

Checkpoint open_source(std::filesystem::path const& path, Comm const& comm) {
  return open_source(path, FormatId::automatic, {}, comm);
}

}  // namespace reshard
