#include "core/formats/fsdp_ranks/rank_table.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <unordered_map>

#include <fmt/ranges.h>

#include "core/base/error.hpp"

namespace reshard::fsdp_ranks {
namespace {

using Kind = TensorForm::Kind;

std::string text_of(Placement const& placement) {
  if (placement.kind == Placement::Kind::replicate) return "R";
  if (placement.kind == Placement::Kind::shard) return fmt::format("S({})", placement.dim);
  return fmt::format("_S({}, {})", placement.dim, placement.split_factor);
}

std::string text_of(TensorForm const& form, MeshForm const* mesh) {
  std::string text = fmt::format("{} ({})", reshard::name(form.dtype), fmt::join(form.shape, ", "));
  if (form.kind == Kind::boxed) return text + " as a ShardedTensor";
  if (form.kind == Kind::plain) return text + " as a plain tensor";
  text += " placed";
  for (Placement const& one : form.placements) text += " " + text_of(one);
  return text + fmt::format(" on a mesh of ({})", fmt::join(mesh->sizes, ", "));
}

MeshForm const* mesh_of(FileForm const& file, TensorForm const& form) {
  return form.kind == Kind::placed ? &file.meshes[form.mesh] : nullptr;
}

bool alike(TensorForm const& a, MeshForm const* mesh_of_a, TensorForm const& b,
           MeshForm const* mesh_of_b) {
  return a.dtype == b.dtype && a.shape == b.shape && a.kind == b.kind &&
         a.placements == b.placements &&
         (mesh_of_a == nullptr || mesh_of_a->sizes == mesh_of_b->sizes);
}

std::string file_of(Checkpoint const& checkpoint, RankFiles const& files, std::size_t rank) {
  return checkpoint.files[files.first_file + rank].string();
}

Index length(Share const& rows) {
  return std::accumulate(rows.begin(), rows.end(), Index{0},
                         [](Index sum, Run const& run) { return sum + (run.end - run.begin); });
}

std::vector<Index> row_major(std::span<Index const> sizes) {
  std::vector<Index> strides(sizes.size(), 1);
  for (std::size_t d = sizes.size(); d-- > 1;) strides[d - 1] = strides[d] * sizes[d];
  return strides;
}

/// Adds the chunks of one tensor.
class Adder {
 public:
  Adder(RankTensor const& tensor, std::string name, RankFiles const& files, Checkpoint& checkpoint)
      : tensor_(tensor),
        form_(*tensor.form),
        name_(std::move(name)),
        files_(files),
        checkpoint_(checkpoint),
        stored_(checkpoint.stored) {}

  void add(bool first_alone) {
    StoredTensor added{name_, form_.dtype, form_.shape,
                       narrow<std::uint32_t>(stored_.chunks.size()), 0};
    if (form_.kind == Kind::placed)
      add_placed();
    else if (form_.kind == Kind::boxed)
      add_boxed();
    else
      add_plain(first_alone);
    if (stored_.chunks.size() == added.first_chunk) add_empty();
    added.chunk_count = narrow<std::uint32_t>(stored_.chunks.size()) - added.first_chunk;
    stored_.tensors.push_back(std::move(added));
  }

 private:
  using Holder = std::pair<std::size_t, std::size_t>;  ///< rank, and place in its form

  /// The one of equal parts that is read.
  Holder const& chosen(std::span<Holder const> replicas) const {
    return replicas[stored_.tensors.size() % replicas.size()];
  }

  std::uint32_t file_of_rank(std::size_t rank) const {
    return narrow<std::uint32_t>(files_.first_file + rank);
  }

  std::vector<HeldPart> const& parts(Holder const& holder) const {
    return files_.ranks[holder.first].parts[holder.second];
  }

  void add_whole(Holder const& holder, HeldPart const& part, std::vector<Index> const& offsets) {
    if (part.tensor.size_bytes == 0) return;
    add_chunk(file_of_rank(holder.first), part.tensor, offsets, part.tensor.shape,
              std::vector<Index>(offsets.size(), 0));
  }

  void add_plain(bool first_alone) {
    Holder const& holder = first_alone ? tensor_.holders.front() : chosen(tensor_.holders);
    add_whole(holder, parts(holder).front(), std::vector<Index>(form_.shape.size(), 0));
  }

  /// Groups of ranks that hold the same shards have them at equal offsets.
  void add_boxed() {
    std::set<std::vector<Index>> seen;
    for (Holder const& holder : tensor_.holders)
      for (HeldPart const& part : parts(holder))
        if (seen.insert(part.offsets).second) add_whole(holder, part, part.offsets);
  }

  std::vector<Index> const& place_of(Holder const& holder) const {
    auto const [rank, t] = holder;
    return files_.ranks[rank].places[files_.form(rank).tensors[t].mesh];
  }

  /// The coordinates along the axes that cut the tensor: ranks with equal ones are replicas.
  std::vector<Index> cutting_place(Holder const& holder) const {
    std::vector<Index> place = place_of(holder);
    for (std::size_t axis = 0; axis < place.size(); ++axis)
      if (form_.placements[axis].kind == Placement::Kind::replicate) place[axis] = 0;
    return place;
  }

  void add_placed() {
    std::map<std::vector<Index>, std::vector<Holder>> holders;
    for (Holder const& holder : tensor_.holders) holders[cutting_place(holder)].push_back(holder);
    for (auto const& [place, replicas] : holders) {
      std::vector<Share> const rows =
          placed_rows(form_.shape, tensor_.mesh->sizes, place, form_.placements);
      std::vector<Index> expected;
      for (Share const& dimension : rows) expected.push_back(length(dimension));
      for (Holder const& holder : replicas) check_rows(holder, expected);
      Holder const& holder = chosen(replicas);
      FileTensor const& local = parts(holder).front().tensor;
      if (local.size_bytes > 0) add_boxes(file_of_rank(holder.first), local, rows);
    }
    check_complete(holders);
  }

  void check_rows(Holder const& holder, std::vector<Index> const& expected) const {
    FileTensor const& local = parts(holder).front().tensor;
    bool const empty = std::ranges::find(expected, Index{0}) != expected.end();
    if (expected == local.shape || (empty && local.size_bytes == 0)) return;
    fail(ErrorKind::source,
         "{}: '{}' has the local shape ({}), and as {} rank {} at ({}) holds ({}). The file is "
         "damaged, or of another save: restore it.",
         file_of(checkpoint_, files_, holder.first), name_, fmt::join(local.shape, ", "),
         text_of(form_, tensor_.mesh), holder.first, fmt::join(place_of(holder), ", "),
         fmt::join(expected, ", "));
  }

  /// One run of each dimension is a box.
  void add_boxes(std::uint32_t file, FileTensor const& local, std::vector<Share> const& rows) {
    std::vector<std::size_t> at(rows.size(), 0);
    for (;;) {
      std::vector<Index> offsets;
      std::vector<Index> sizes;
      std::vector<Index> inside;
      for (std::size_t d = 0; d < rows.size(); ++d) {
        Run const& run = rows[d][at[d]];
        offsets.push_back(run.begin);
        sizes.push_back(run.end - run.begin);
        inside.push_back(
            length({rows[d].begin(), rows[d].begin() + static_cast<std::ptrdiff_t>(at[d])}));
      }
      add_chunk(file, local, offsets, sizes, inside);
      std::size_t d = rows.size();
      while (d > 0 && ++at[d - 1] == rows[d - 1].size()) at[--d] = 0;
      if (d == 0) return;
    }
  }

  /// `inside`: where the box begins in the local tensor.
  void add_chunk(std::uint32_t file, FileTensor const& local, std::vector<Index> const& offsets,
                 std::vector<Index> const& sizes, std::vector<Index> const& inside) {
    std::vector<Index> const strides =
        local.strides.empty() ? row_major(local.shape) : local.strides;
    std::vector<Index> const usual = row_major(sizes);
    auto const bytes = static_cast<std::uint64_t>(bits(local.dtype) / 8);
    Index begin = 0;
    Index elements = 1;
    bool contiguous = true;
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      begin += inside[d] * strides[d];
      elements *= sizes[d];
      contiguous = contiguous && (sizes[d] <= 1 || strides[d] == usual[d]);
    }
    if (!contiguous) stored_.strides[stored_.chunks.size()] = strides;
    stored_.chunks.push_back({stored_.lists.add(offsets),
                              stored_.lists.add(sizes),
                              {file, local.offset_bytes + static_cast<std::uint64_t>(begin) * bytes,
                               static_cast<std::uint64_t>(elements) * bytes}});
  }

  /// A tensor without elements has one box.
  void add_empty() {
    if (std::ranges::find(form_.shape, Index{0}) == form_.shape.end())
      fail(
          ErrorKind::source,
          "{}: no rank holds any part of '{}', which is {}. Files are damaged, or of another save: "
          "restore them.",
          checkpoint_.place, name_, text_of(form_, tensor_.mesh));
    auto const rank = tensor_.holders.front().first;
    stored_.chunks.push_back({stored_.lists.add(std::vector<Index>(form_.shape.size(), 0)),
                              stored_.lists.add(form_.shape),
                              {narrow<std::uint32_t>(files_.first_file + rank), 0, 0}});
  }

  /// Every place along the axes that cut it is that of a rank.
  void check_complete(auto const& holders) const {
    std::vector<Index> place(form_.placements.size(), 0);
    for (;;) {
      if (!holders.contains(place)) {
        std::string text;
        for (std::size_t axis = 0; axis < place.size(); ++axis)
          if (form_.placements[axis].kind != Placement::Kind::replicate)
            text += fmt::format("{}{} {}", text.empty() ? "" : ", ", axis_name(axis), place[axis]);
        fail(
            ErrorKind::source,
            "{}: no file holds the part of '{}' at {} of its mesh of ({}). The meshes of the files "
            "disagree, or files are of another save: restore them.",
            checkpoint_.place, name_, text, fmt::join(tensor_.mesh->sizes, ", "));
      }
      std::size_t axis = place.size();
      while (axis > 0) {
        bool const cuts = form_.placements[axis - 1].kind != Placement::Kind::replicate;
        if (cuts && ++place[axis - 1] < tensor_.mesh->sizes[axis - 1]) break;
        place[--axis] = 0;
      }
      if (axis == 0) return;
    }
  }

  std::string axis_name(std::size_t axis) const {
    auto const& names = tensor_.mesh->names;
    return axis < names.size() ? names[axis] : fmt::format("axis {}", axis);
  }

  RankTensor const& tensor_;
  TensorForm const& form_;
  std::string name_;
  RankFiles const& files_;
  Checkpoint& checkpoint_;
  StoredTable& stored_;
};

/// The CRC-32 of a part: that of the record which it fills, or its own.
std::optional<std::uint32_t> crc32_of(RankHeader const& header, FileTensor const& part) {
  auto const found =
      std::ranges::lower_bound(header.records, part.offset_bytes, {}, &StorageRecord::offset_bytes);
  bool const fills = found != header.records.end() && found->offset_bytes == part.offset_bytes &&
                     found->size_bytes == part.size_bytes;
  if (fills) return found->crc32;
  auto const sum =
      std::ranges::lower_bound(header.sums, part.offset_bytes, {}, &PartSum::offset_bytes);
  bool const known = sum != header.sums.end() && sum->offset_bytes == part.offset_bytes &&
                     sum->size_bytes == part.size_bytes;
  return known ? std::optional(sum->crc32) : std::nullopt;
}

}  // namespace

std::vector<RankTensor> tensors_of(RankFiles const& files, Checkpoint const& checkpoint) {
  std::vector<RankTensor> result;
  std::unordered_map<std::string_view, std::size_t> numbers;
  std::vector<std::vector<std::size_t>> number_of(files.forms.size());
  for (std::size_t rank = 0; rank < files.ranks.size(); ++rank) {
    FileForm const& file = files.form(rank);
    std::vector<std::size_t>& known = number_of[files.form_of[rank]];
    bool const is_new = known.empty();
    for (std::size_t t = 0; t < file.tensors.size(); ++t) {
      TensorForm const& form = file.tensors[t];
      if (is_new) {
        auto const [found, added] = numbers.try_emplace(form.name, result.size());
        known.push_back(found->second);
        if (added) result.push_back({&form, mesh_of(file, form), {}});
        RankTensor const& first = result[found->second];
        if (!alike(*first.form, first.mesh, form, mesh_of(file, form)))
          fail(ErrorKind::source,
               "{}: '{}' is {} here, and {} in {}. Files are of several saves, or ranks hold parts "
               "that no mesh joins: restore those of one save.",
               file_of(checkpoint, files, rank), form.name, text_of(form, mesh_of(file, form)),
               text_of(*first.form, first.mesh),
               file_of(checkpoint, files, first.holders.front().first));
      }
      result[known[t]].holders.emplace_back(rank, t);
    }
  }
  return result;
}

void add_tensor(RankTensor const& tensor, std::string name, RankFiles const& files,
                Checkpoint& checkpoint) {
  Adder(tensor, std::move(name), files, checkpoint).add(false);
}

void add_first(RankTensor const& tensor, std::string name, RankFiles const& files,
               Checkpoint& checkpoint) {
  Adder(tensor, std::move(name), files, checkpoint).add(true);
}

void add_records(RankFiles const& files, Checkpoint& checkpoint) {
  for (std::size_t rank = 0; rank < files.ranks.size(); ++rank)
    for (StorageRecord const& record : files.ranks[rank].records)
      checkpoint.records.push_back({narrow<std::uint32_t>(files.first_file + rank),
                                    record.offset_bytes, record.size_bytes, 0,
                                    files.ranks[rank].file_bytes, record.crc32});
}

std::optional<std::uint32_t> first_crc32(RankTensor const& tensor, RankFiles const& files) {
  for (auto const& [rank, t] : tensor.holders)
    for (HeldPart const& part : files.ranks[rank].parts[t])
      if (auto const crc32 = crc32_of(files.ranks[rank], part.tensor)) return crc32;
  return std::nullopt;
}

void refuse_unequal_replicas(std::span<RankTensor const> tensors, RankFiles const& files,
                             Checkpoint const& checkpoint) {
  for (RankHeader const& header : files.ranks)
    if (!header.damage.empty())
      fail(ErrorKind::source,
           "{}. Restore it from the original, or set source.verify = \"off\" to use what is there.",
           header.damage);
  for (RankTensor const& tensor : tensors) {
    if (tensor.form->kind == Kind::boxed) continue;
    std::map<std::vector<Index>, std::pair<std::size_t, std::uint32_t>> seen;
    for (auto const& [rank, t] : tensor.holders) {
      RankHeader const& header = files.ranks[rank];
      FileTensor const& part = header.parts[t].front().tensor;
      if (part.size_bytes == 0) continue;
      auto const crc32 = crc32_of(header, part);
      if (!crc32) continue;
      std::vector<Index> place;
      if (tensor.mesh != nullptr) place = header.places[files.form(rank).tensors[t].mesh];
      for (std::size_t axis = 0; axis < place.size(); ++axis)
        if (tensor.form->placements[axis].kind == Placement::Kind::replicate) place[axis] = 0;
      auto const [first, is_new] = seen.try_emplace(std::move(place), rank, *crc32);
      if (is_new || first->second.second == *crc32) continue;
      fail(
          ErrorKind::source,
          "{}: '{}' has the CRC-32 0x{:08x} here and 0x{:08x} in {}, and the two must hold the "
          "same values: it is {}. Ranks that diverged in training, or a damaged file, cause this; "
          "or each holds a part of its own, which no mesh tells. Choose another checkpoint, or set "
          "source.verify = \"off\" to use one of each.",
          file_of(checkpoint, files, rank), tensor.form->name, *crc32, first->second.second,
          file_of(checkpoint, files, first->second.first), text_of(*tensor.form, tensor.mesh));
    }
  }
}

}  // namespace reshard::fsdp_ranks
