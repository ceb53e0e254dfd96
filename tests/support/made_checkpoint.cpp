#include "tests/support/made_checkpoint.hpp"

#include <algorithm>

#include "core/formats/megatron/mcore/args.hpp"
#include "core/formats/run/state_inventory.hpp"
#include "tests/support/read_only_format.hpp"

namespace reshard::test {
namespace {

/// The format itself, but for what it would read from files.
class MadeFormat final : public ReadOnlyFormat {
 public:
  explicit MadeFormat(FormatId id) : like_(format_of(id)) {}

  FormatId id() const override { return like_.id(); }
  TargetTraits target() const override { return like_.target(); }
  StoredView view(Checkpoint const& checkpoint, std::string const& prefix) const override {
    return like_.view(checkpoint, prefix);
  }
  StateInventory inventory(Checkpoint const& checkpoint, StoredView const& view) const override {
    return like_.inventory(checkpoint, view);
  }
  /// {"args": Namespace(…), "iteration": …}
  std::optional<RunRecord> run_record(Checkpoint const& checkpoint) const override {
    if (checkpoint.run.args.members() == nullptr) return std::nullopt;
    auto torch = std::make_shared<TorchFile>();
    pickle::Document& document = torch->document;
    pickle::NodeId const args = megatron::add_namespace(document, *checkpoint.run.args.members());
    document.root = document.add_dict();
    document.set(document.root, "args", args);
    document.set(document.root, "iteration", document.add_int(checkpoint.run.stated_iteration));
    if (std::ranges::any_of(checkpoint.stored.tensors, [](StoredTensor const& tensor) {
          return is_optimizer_key(tensor.name);
        }))
      document.set(document.root, "optimizer", settings(document));
    RunRecord record;
    record.torch = std::move(torch);
    record.file = "made";
    record.iteration = checkpoint.run.stated_iteration;
    record.folder_iteration = checkpoint.run.iteration;
    return record;
  }
  std::optional<huggingface::Folder> model_files(Checkpoint const& checkpoint) const override {
    return checkpoint.model.beside;
  }

 private:
  /// Two parameter groups, of which one decays.
  static pickle::NodeId settings(pickle::Document& document) {
    std::vector<pickle::NodeId> groups;
    for (double const decay : {1.0, 0.0}) {
      groups.push_back(document.add_dict());
      document.set(groups.back(), "wd_mult", document.add_real(decay));
      document.set(groups.back(), "step", document.add_int(3));
    }
    pickle::NodeId const inner = document.add_dict();
    document.set(inner, "param_groups", document.add_list(std::move(groups)));
    pickle::NodeId const outer = document.add_dict();
    document.set(outer, "optimizer", inner);
    return outer;
  }

  Format const& like_;
};

Format const& made_format(FormatId id) {
  static std::map<FormatId, MadeFormat const> const formats = [] {
    std::map<FormatId, MadeFormat const> all;
    for (Format const* format : all_formats()) all.emplace(format->id(), format->id());
    return all;
  }();
  return formats.at(id);
}

}  // namespace

std::uint64_t bytes_of(MadeTensor const& tensor) {
  Index elements = 1;
  for (Index const extent : tensor.shape) elements *= extent;
  return static_cast<std::uint64_t>(elements) * static_cast<std::uint64_t>(bits(tensor.dtype)) / 8;
}

MadeCheckpoint::MadeCheckpoint(FormatId id) {
  value.format = &made_format(id);
  value.folder = value.root = "/made";
  value.place = "/made";
  value.summary = "made";
  bool const megatrons = value.format->target().names == NameOwner::megatron;
  value.names = megatrons ? NameOwner::megatron : NameOwner::family;
  value.storage = id == FormatId::megatron      ? Storage::shares
                  : id == FormatId::huggingface ? Storage::whole
                                                : Storage::chunks;
  value.chunked.item_files = value.storage == Storage::chunks && id != FormatId::hdf5;
}

MadeCheckpoint& MadeCheckpoint::begin_file() {
  value.files.push_back(value.folder / fmt::format("file{}", value.files.size()));
  value.stamps.taken.emplace_back();
  value.stamps.rank.push_back(0);
  end_bytes_ = 0;
  return *this;
}

ItemPlace MadeCheckpoint::take_bytes(std::uint64_t bytes) {
  ItemPlace const place{narrow<std::uint32_t>(value.files.size() - 1), end_bytes_, bytes};
  end_bytes_ += bytes;
  return place;
}

void MadeCheckpoint::add_whole(MadeTensor const& tensor) {
  value.stored.add_whole(tensor.name, tensor.dtype, tensor.shape, take_bytes(bytes_of(tensor)));
}

MadeCheckpoint& MadeCheckpoint::add_file(std::vector<MadeTensor> const& tensors) {
  begin_file();
  for (MadeTensor const& tensor : tensors) add_whole(tensor);
  return *this;
}

MadeCheckpoint& MadeCheckpoint::add_share(SharePlace place,
                                          std::vector<MadeTensor> const& tensors) {
  begin_file();
  place.file = narrow<std::uint32_t>(value.files.size() - 1);
  place.first_tensor = value.stored.tensors.size();
  place.tensor_count = tensors.size();
  for (MadeTensor const& tensor : tensors) add_whole(tensor);
  value.shares.places.push_back(std::move(place));
  return *this;
}

MadeCheckpoint& MadeCheckpoint::add_cut(MadeTensor const& tensor, std::vector<Index> const& parts) {
  StoredTable& stored = value.stored;
  auto const first = narrow<std::uint32_t>(stored.chunks.size());
  std::vector<Index> sizes;
  Index count = 1;
  for (std::size_t d = 0; d < parts.size(); ++d) {
    sizes.push_back(tensor.shape[d] / parts[d]);
    count *= parts[d];
  }
  std::uint64_t const bytes = bytes_of(tensor) / static_cast<std::uint64_t>(count);
  for (Index c = 0; c < count; ++c) {
    std::vector<Index> offsets(parts.size());
    Index rest = c;
    for (std::size_t d = parts.size(); d-- > 0; rest /= parts[d])
      offsets[d] = rest % parts[d] * sizes[d];
    ItemPlace const item = take_bytes(bytes);
    stored.chunks.push_back({stored.lists.add(offsets), stored.lists.add(sizes), item});
  }
  stored.tensors.push_back(
      {tensor.name, tensor.dtype, tensor.shape, first, narrow<std::uint32_t>(count)});
  return *this;
}

MadeCheckpoint& MadeCheckpoint::add_object(std::string name) {
  constexpr std::uint64_t bytes = 100;
  value.stored.objects.push_back({std::move(name), take_bytes(bytes)});
  value.chunked.looks.emplace_back();
  return *this;
}

MadeCheckpoint made_dcp(std::vector<MadeTensor> const& tensors) {
  MadeCheckpoint made(FormatId::dcp);
  made.add_file(tensors);
  return made;
}

}  // namespace reshard::test
