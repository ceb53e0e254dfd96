#include "stages/plan/source/catalog/source_catalog.hpp"
#include "stages/plan/source/catalog/lacking_tensor.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "core/base/capture.hpp"
#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"
#include "core/formats/megatron/mcore/root.hpp"
#include "core/mapping/expressions/placed_name.hpp"
#include "core/mapping/maps/map_file.hpp"
#include "stages/plan/source/catalog/dequantised.hpp"
#include "stages/plan/source/catalog/restride.hpp"
#include "stages/plan/source/catalog/source_names.hpp"
#include "stages/plan/source/catalog/stacked_scales.hpp"
#include "stages/plan/source/facts/other_form.hpp"

namespace reshard {
namespace {

/// Which tensor a stored name is, by its name or an alias; two tensors for one name are an Error.
std::optional<std::size_t> find(NameTable const& table, StoredName const& name,
                                std::string const& where) {
  auto hit = table.find(name.name);
  for (std::string const& alias : name.aliases) {
    auto const other = table.find(alias);
    if (other == table.end() || other == hit) continue;
    if (hit != table.end())
      fail(ErrorKind::source, "{}: '{}' and '{}' are two names of one tensor. Remove one of them.",
           where, hit->first, other->first);
    hit = other;
  }
  return hit == table.end() ? std::nullopt : std::optional<std::size_t>(hit->second);
}

/// Modules around a weight in which its scales may stand.
constexpr int most_levels = 2;

class CatalogBuilder {
 public:
  CatalogBuilder(Model& model, Side const& side, Checkpoint const& source, StoredView const& view,
                 CatalogChoice const& choice)
      : model_(model), side_(side), source_(source), view_(view), choice_(choice) {
    catalog_.tensors.resize(model.tensors().size());
    for (std::filesystem::path const& file : source.files) catalog_.files.push_back(file.string());
    catalog_.blobs.reserve(source.stored.chunks.size());
    explained_.resize(source.stored.tensors.size(), false);
    vocab_ = model.axes().find("vocab");
  }

  SourceCatalog run(StoredShares const& shares) {
    std::vector<std::vector<StoredName>> names = shares.names(side_);
    if (settle(shares, names)) names = shares.names(side_);
    if (source_.storage == Storage::shares)
      for (std::vector<StoredName> const& of_chunk : names) {
        placed_.emplace_back();
        for (StoredName const& name : of_chunk) placed_.back().emplace_back(side_, name);
      }
    // Where a weight may be stored as parts, which it has depends on its share.
    bool const by_table = model_.schemes().empty();
    if (by_table)
      for (std::size_t i = 0; i < shares.size(); ++i)
        if (std::size_t const first = shares.first_alike(i); first != i) tables_[first];
    for (std::size_t i = 0; i < shares.size(); ++i) {
      std::size_t const first = shares.first_alike(i);
      auto const table = tables_.find(first);
      if (by_table && first != i) {
        add_alike(shares.without_names(i), names, table->second);
        continue;
      }
      StoredShare const share = shares[i];
      add_share(share, names[share.chunk], SlotId::weight,
                table == tables_.end() ? nullptr : &table->second);
    }
    for (std::size_t s = 1; s <= view_.state_tables.size() && s < model_.slots().size(); ++s) {
      StoredShare share;
      share.where = source_.place;
      for (auto const& [name, at] : view_.state_tables[s - 1]) share.tensors.emplace(name, at);
      add_share(share, names.front(), SlotId(s));
    }
    catalog_.shrink();
    return {std::move(catalog_), left_out(), std::move(padding_)};
  }

  /// After run() has failed: Error::is_of_unknown_form().
  bool unknown_form() const { return unknown_form_; }

 private:
  bool in_chunks() const { return source_.storage == Storage::chunks; }

  /// A tensor of a share and its name.
  struct KnownTensor {
    std::size_t at = 0;                   ///< in the share
    std::size_t name = 0;                 ///< among those of the chunk
    EntryLayout const* layout = nullptr;  ///< of the share before, whose shape was right
  };
  /// The common part of shares with equal tables.
  struct KnownTable {
    std::vector<KnownTensor> tensors;
    std::vector<std::pair<std::size_t, std::string>> dropped;
  };

  /// Whether the model lacks more than before.
  bool settle(StoredShares const& shares, std::vector<std::vector<StoredName>> const& names) {
    std::vector<bool> found;
    for (std::size_t i = 0; i < shares.size(); ++i) {
      if (shares.first_alike(i) != i) continue;
      StoredShare const share = shares[i];
      note_found(
          model_, side_, names[share.chunk],
          [&share](std::string const& name) { return share.tensors.contains(name); }, found);
    }
    return settle_optional(model_, choice_.settles, found);
  }

  /// A share whose names were all found in another one.
  void add_alike(StoredShare const& share, std::vector<std::vector<StoredName>> const& names,
                 KnownTable& table) {
    for (KnownTensor& known : table.tensors)
      add_tensor(share, names[share.chunk], share.first_tensor + known.at, SlotId::weight, known);
    for (auto const& [at, key] : table.dropped) dropped_.emplace(share.first_tensor + at, key);
  }

  /// The stored tensors of one place against the names that the map makes for it. Frozen weights
  /// have no state. Puts what other shares have alike into `table`.
  void add_share(StoredShare const& share, std::vector<StoredName> const& names, SlotId slot,
                 KnownTable* table = nullptr) {
    bool const partial = slot != SlotId::weight;
    if (partial) note_own_states(share, names);
    for (std::size_t n = 0; n < names.size(); ++n) {
      StoredName const& name = names[n];
      if (!partial && choice_.dequantise) leave_out_beside(share, name);
      if (!partial && add_dequantised(share, name)) continue;
      auto const at = find(share.tensors, name, share.where);
      if (!at) {
        if (name.copy || partial || choice_.partial) continue;
        fail_lacking(share, name, names);
      }
      explained_[*at] = true;
      KnownTensor known{*at - share.first_tensor, n};
      add_tensor(share, names, *at, slot, known);
      if (table != nullptr) table->tensors.push_back(known);
      if (partial)
        for (TensorId const tensor : side_.tensors(name.entry))
          model_.set_exists(model_.in_slot(tensor, slot), true);
    }
    check_explained(share, names, table);
  }

  /// Notes which tensors have state under their own names. That of others is where the map has
  /// another place of their values.
  void note_own_states(StoredShare const& share, std::vector<StoredName> const& names) {
    own_states_.clear();
    for (StoredName const& name : names)
      if (!name.copy && find(share.tensors, name, share.where))
        own_states_.insert(side_.tensors(name.entry).begin(), side_.tensors(name.entry).end());
  }

  bool is_copy(StoredName const& name, SlotId slot) const {
    if (!name.copy || slot == SlotId::weight) return name.copy;
    return std::ranges::any_of(side_.tensors(name.entry),
                               [&](TensorId const tensor) { return own_states_.contains(tensor); });
  }

  void check_explained(StoredShare const& share, std::vector<StoredName> const& names,
                       KnownTable* table) {
    std::optional<std::pair<std::size_t, std::string_view>> first;
    for (auto const& [key, at] : share.tensors) {
      if (explained_[at]) continue;
      if (side_.dropped(key)) {
        dropped_.emplace(at, key);
        if (table != nullptr) table->dropped.emplace_back(at - share.first_tensor, key);
      } else if (!first || at < first->first) {
        first = {at, key};
      }
    }
    if (!first) return;
    StoredTensor const& tensor = source_.stored.tensors[first->first];
    bool const alone = choice_.map_names.find(' ') == std::string::npos;
    if (alone && source_.names == NameOwner::megatron &&
        megatron::behind_root(first->second, view_.traits.names.root).empty())
      fail(ErrorKind::source,
           "{}: '{}' is beside the language model, and {} does not describe it. Set "
           "source.config to the model's config.json, whose map may describe it; or set "
           "model.unmapped = \"drop\" to convert only the language model.",
           file_of(tensor), tensor.name, choice_.map_names);
    if (!choice_.method.empty() && !weight_beside(tensor.name.text(), names).empty())
      check_rest(share, names);
    fail_unexplained(file_of(tensor), tensor.name, names, model_, choice_.map_names,
                     choice_.method);
  }

  LeftOut left_out() const {
    LeftOut result;
    for (auto const& [at, key] : dropped_) {
      StoredTensor const& tensor = source_.stored.tensors[at];
      ++result.tensors;
      result.bytes += static_cast<std::uint64_t>(
                          checked_volume(tensor.shape, ErrorKind::source, tensor.name.text())) *
                      static_cast<std::uint64_t>(bits(tensor.dtype)) / 8;
      if (result.names.size() < LeftOut::most_names && !std::ranges::count(result.names, key))
        result.names.push_back(key);
    }
    return result;
  }

  /// The file in messages about a tensor.
  std::string const& file_of(StoredTensor const& tensor) const {
    if (in_chunks()) return source_.place;
    return catalog_.files[source_.stored.chunks[tensor.first_chunk].item.file];
  }

  /// "nvfp4.input_scale", which weights of the scheme may lack.
  bool is_optional_part(std::string const& word) const {
    return std::ranges::any_of(model_.schemes(), [&](QuantScheme const& scheme) {
      return std::ranges::any_of(scheme.parts, [&](QuantPart const& part) {
        return part.optional && word == fmt::format("{}.{}", scheme.name, part.name);
      });
    });
  }

  [[noreturn]] void fail_lacking(StoredShare const& share, StoredName const& name,
                                 std::vector<StoredName> const& names) {
    std::string const& entry = side_.entry_place(name.entry);
    if (is_optional_part(side_.part(name.entry))) {
      check_rest(share, names);
      fail(
          ErrorKind::source,
          "{}: lacks '{}', which other stored parts of the same weight have. A quantiser leaves "
          "this number out where it saw no input, as of an expert that no token reached, and a map "
          "carries it for all of them or for none. Calibrate with more data; or set model.map = "
          "\"none\", which keeps the tensors of a Hugging Face folder as they are stored.",
          share.where, name.name);
    }
    if (!side_.part(name.entry).empty()) fail_lacking_part(share, name, names);
    if (source_.storage != Storage::shares)
      check_for_prefix(source_.storage, share, name.name, choice_.prefix);
    std::string const form = other_form(share, names, name, levels_of(share, name));
    if (unknown_form_) check_rest(share, names);
    if (!form.empty())
      fail(ErrorKind::source, "{}: '{}', which {} expects, is not stored. {}.", share.where,
           name.name, entry, form);
    std::string const found = found_of(share, names);
    fail_lacking_tensor(source_, share.where, name.name, entry, found);
  }

  /// "20 of the 21 expected names are there".
  std::string found_of(StoredShare const& share, std::vector<StoredName> const& names) const {
    std::size_t expected = 0;
    std::size_t there = 0;
    for (StoredName const& name : names) {
      if (name.copy) continue;
      ++expected;
      there += find(share.tensors, name, share.where) ? 1U : 0U;
    }
    return fmt::format("{} of the {} expected names are there", there, expected);
  }

  /// A part of a quantised weight, or a matrix of an adapter, that others have which are stored as
  /// one tensor elsewhere.
  [[noreturn]] void fail_lacking_part(StoredShare const& share, StoredName const& name,
                                      std::vector<StoredName> const& names) const {
    std::size_t expected = 0;
    std::size_t there = 0;
    for (StoredName const& other : names)
      if (other.entry == name.entry) {
        ++expected;
        there += find(share.tensors, other, share.where) ? 1U : 0U;
      }
    if (!model_.adapter_ranks().empty())
      fail(ErrorKind::source,
           "{}: lacks '{}', and {} of the {} weights that the same line of the map describes have "
           "an adapter. Formats that join these weights need one of each: train an adapter of all "
           "experts, or merge this one into its base (model.adapter = \"merge\").",
           share.where, name.name, there, expected);
    fail(ErrorKind::source,
         "{}: lacks '{}', a part of a quantised weight, and {} of the {} weights that the same "
         "line of the map describes have it. Formats that join these weights need it of each: "
         "take the original folder or quantise again; or set model.map = \"none\" to keep the "
         "stored tensors as they are, in a Hugging Face folder, DCP or HDF5.",
         share.where, name.name, there, expected);
  }

  void add_tensor(StoredShare const& share, std::vector<StoredName> const& names, std::size_t at,
                  SlotId slot, KnownTensor& known) {
    StoredName const& name = names[known.name];
    StoredTensor const tensor = source_.stored.tensors[at];
    auto const rounded = source_.stored.rounded.find(at);
    bool const rounds = rounded != source_.stored.rounded.end() && slot == SlotId::weight;
    DType const dtype = rounds ? rounded->second : tensor.dtype;
    PlacedName* const placed = placed_.empty() ? nullptr : &placed_[share.chunk][known.name];
    EntryLayout const* const layout = placed != nullptr ? &placed->layout(share.place) : nullptr;
    if (layout == nullptr || layout != known.layout)
      check_stored(file_of(tensor), tensor.name, dtype, tensor.shape,
                   layout != nullptr ? layout->file_shape : file_shape(share, name), side_,
                   name.entry, model_, [&] {
                     std::string form =
                         other_form(share, names, name, is_of_codes(dtype) ? most_levels : 0);
                     if (unknown_form_) check_rest(share, names);
                     return form;
                   });
    known.layout = layout;
    for (std::size_t c = tensor.first_chunk; c < tensor.first_chunk + tensor.chunk_count; ++c) {
      StoredChunk const& chunk = source_.stored.chunks[c];
      auto const sizes = source_.stored.sizes(chunk);
      set_pieces(share, name, c, placed);
      if (slot == SlotId::weight) note_padding(share, name, tensor, c);
      for (InternedPiece& piece : pieces_) piece.tensor = model_.in_slot(piece.tensor, slot);
      Blob blob{chunk.item.file, source_.stored.payload_offset_bytes(c), tensor.dtype, tensor.name};
      if (rounds)
        blob = catalog_.computed(
            blob, checked_volume({sizes.data(), sizes.size()}, ErrorKind::source, tensor.name),
            ViewKind::round, dtype);
      catalog_.add(std::move(blob), pieces_, is_copy(name, slot));
    }
  }

  /// Rows of the vocabulary that a chunk has and the model does not: pieces_ are those of the
  /// chunk.
  void note_padding(StoredShare const& share, StoredName const& name, StoredTensor const& tensor,
                    std::size_t c) {
    auto const& tensors = side_.tensors(name.entry);
    if (vocab_ < 0 || tensors.size() != 1 || name.copy || source_.storage == Storage::whole ||
        source_.stored.strides.contains(c) || bits(tensor.dtype) % 8 != 0)
      return;
    auto const& axes = model_.tensor(tensors.front()).axes;
    StoredChunk const& chunk = source_.stored.chunks[c];
    auto const sizes = source_.stored.sizes(chunk);
    if (axes.empty() || axes.front().axis != static_cast<AxisId>(vocab_) || axes.front().div != 1 ||
        sizes.size() != axes.size() || sizes.front() == 0)
      return;
    Index reach = 0;
    for (InternedPiece const& piece : pieces_) {
      Index last = piece.offset;
      for (PieceDigit const& digit : form_digits(piece.form))
        last += (digit.count - 1) * digit.stride;
      reach = std::max(reach, last + 1);
    }
    Index const elements =
        checked_volume({sizes.data() + 1, sizes.size() - 1}, ErrorKind::source, tensor.name.text());
    if (elements == 0) return;
    Index const held = (reach + elements - 1) / elements;
    if (held >= sizes.front()) return;
    AxisRule const* const rule = side_.rank_rule(name.entry, static_cast<AxisId>(vocab_));
    Index const begin = in_chunks() ? source_.stored.offsets(chunk).front()
                        : rule != nullptr
                            ? side_.mesh().coordinate(share.place.at, rule->mesh) * sizes.front()
                            : 0;
    if (!padded_.emplace(tensors.front(), begin + held).second) return;
    auto const row_bytes =
        static_cast<std::uint64_t>(elements) * static_cast<std::uint64_t>(bits(tensor.dtype)) / 8;
    padding_.push_back(
        {tensors.front(), chunk.item.file,
         source_.stored.payload_offset_bytes(c) + static_cast<std::uint64_t>(held) * row_bytes,
         tensor.dtype, begin + held, sizes.front() - held, row_bytes});
  }

  /// Of a vector only what stands in its own module is a form of it.
  int levels_of(StoredShare const& share, StoredName const& name) const {
    return file_shape(share, name).size() > 1 ? most_levels : 0;
  }

  std::vector<Index> file_shape(StoredShare const& share, StoredName const& name) const {
    return in_chunks() ? side_.shape(name) : side_.layout(name.entry, share.place).file_shape;
  }

  /// The form of a weight is not known: refuses a source that lacks others, whatever their form,
  /// and marks the Error that follows (unknown_form()).
  void check_rest(StoredShare const& share, std::vector<StoredName> const& names) {
    for (StoredName const& name : names) {
      if (name.copy || choice_.partial || !side_.part(name.entry).empty()) continue;
      if (find(share.tensors, name, share.where)) continue;
      unknown_form_ = false;
      if (other_form(share, names, name, levels_of(share, name)).empty())
        fail_lacking(share, name, names);
    }
    unknown_form_ = true;
  }

  /// The known form of a weight that is not stored as the map expects; "" for none. `levels` are of
  /// unnamed_beside().
  std::string other_form(StoredShare const& share, std::vector<StoredName> const& names,
                         StoredName const& name, int levels) {
    if (auto const fault = quantised_fault(model_, side_, name, share.place,
                                           finder_over(share.tensors, source_.stored))) {
      unknown_form_ = true;
      return straddling_words(fault->sentence, fault->has_values);
    }
    std::string const beside =
        unnamed_beside(name.name, share.tensors, names, source_.stored, levels);
    unknown_form_ = !beside.empty() && !choice_.method.empty();
    if (beside.empty()) return "";
    bool const has_values = match_quantised(model_, side_, name, share.place,
                                            finder_of_values(share, name), MatchFor::values)
                                .has_value();
    return other_form_words(beside, choice_.method, has_values);
  }

  /// Puts the pieces of a chunk into pieces_.
  void set_pieces(StoredShare const& share, StoredName const& name, std::size_t c,
                  PlacedName* placed) {
    auto const strides = source_.stored.strides.find(c);
    bool const restrides = strides != source_.stored.strides.end();
    if (!in_chunks() && !restrides) {
      auto const pieces = placed != nullptr ? placed->pieces(share.place)
                                            : side_.interned_pieces(name, share.place);
      return pieces_.assign(pieces.begin(), pieces.end());
    }
    StoredChunk const& chunk = source_.stored.chunks[c];
    std::vector<Piece> pieces =
        in_chunks() ? box_pieces(name, chunk) : side_.pieces(name, share.place);
    auto const sizes = source_.stored.sizes(chunk);
    if (restrides) restride(pieces, {sizes.begin(), sizes.end()}, strides->second);
    pieces_.clear();
    for (Piece const& piece : pieces) pieces_.push_back(interned(piece));
  }

  std::vector<Piece> box_pieces(StoredName const& name, StoredChunk const& chunk) const {
    auto const begin = source_.stored.offsets(chunk);
    auto const sizes = source_.stored.sizes(chunk);
    std::vector<Index> end(begin.begin(), begin.end());
    for (std::size_t d = 0; d < end.size(); ++d) end[d] += sizes[d];
    return side_.box_pieces(name, begin, end);
  }

  /// Leaves out quantisers' numbers beside a weight that is stored as it is: they have no part in
  /// its values.
  void leave_out_beside(StoredShare const& share, StoredName const& name) {
    if (model_.schemes().empty()) return;
    for (QuantMatch const& match :
         match_beside(model_, side_, name, share.place, finder_over(share.tensors, source_.stored),
                      MatchFor::values))
      for (std::string const& part : match.stored_parts)
        if (auto const found = share.tensors.find(part); found != share.tensors.end())
          explained_[found->second] = true;
    auto const at = find(share.tensors, name, share.where);
    auto const stacked = stacked_scale(name.name + "_scale_inv");
    if (at && stacked && bits(source_.stored.tensors[*at].dtype) > 8)
      static_cast<void>(place_of(share, stacked->name));
  }

  /// Where a stored tensor lies, which is explained by that.
  std::optional<StoredPlace> place_of(StoredShare const& share, std::string const& stored) {
    auto const found = share.tensors.find(stored);
    if (found == share.tensors.end()) return std::nullopt;
    explained_[found->second] = true;
    StoredTensor const& tensor = source_.stored.tensors[found->second];
    return StoredPlace{source_.stored.chunks[tensor.first_chunk].item.file,
                       source_.stored.payload_offset_bytes(tensor.first_chunk), tensor.dtype,
                       tensor.shape};
  }

  /// The scale of an expert's weight in a tensor of all of them; nothing where blocks would hold
  /// rows of gate and up.
  std::optional<StoredPlace> scale_in_stack(StoredShare const& share, StoredName const& name,
                                            std::string const& part) {
    auto const stacked = stacked_scale(part);
    if (!stacked || in_chunks()) return std::nullopt;
    auto const place = place_of(share, stacked->name);
    if (!place) return std::nullopt;
    Json const stated = model_.value("quantization_config.weight_block_size");
    Index const rows = side_.quantised_layout(name.entry, share.place).layout.shape.front();
    return place_in_stack(*place, *stacked, rows, stated);
  }

  /// Finds the parts of a weight, those within a tensor of all experts included.
  FindTensor finder_of_values(StoredShare const& share, StoredName const& name) {
    return [this, &share, &name,
            stored = finder_over(share.tensors, source_.stored)](std::string const& part) {
      auto found = stored(part);
      if (auto const stacked = found ? std::nullopt : scale_in_stack(share, name, part))
        found = FoundTensor{stacked->dtype, stacked->shape};
      return found;
    };
  }

  /// A weight whose parts are there, as computed values; false when it is stored as it is.
  bool add_dequantised(StoredShare const& share, StoredName const& name) {
    if (model_.schemes().empty() || !choice_.dequantise) return false;
    auto const match = match_quantised(model_, side_, name, share.place,
                                       finder_of_values(share, name), MatchFor::values);
    if (!match) return false;
    if (in_chunks())
      fail(
          ErrorKind::usage,
          "[model] quant = \"dequantise-bf16\": {} holds boxes of quantised tensors ('{}'). Dequantise the Hugging Face or mp_rank folder.",
          source_.place, name.name);
    auto const take = [&](std::string const& part) -> std::optional<StoredPlace> {
      auto const place = place_of(share, part);
      return place ? place : scale_in_stack(share, name, part);
    };
    EntryLayout const layout = side_.quantised_layout(name.entry, share.place);
    QuantScheme const& scheme = model_.schemes()[match->scheme];
    std::vector<Index> const& shape = layout.layout.shape;
    std::uint32_t const file =
        catalog_.add_view(dequantised(scheme, *match, name.name, shape, take));
    std::vector<Piece> pieces = layout.layout.pieces;
    if (is_stored_transposed(scheme)) {
      std::vector<Index> strides(shape.size(), shape.end()[-2]);
      strides.end()[-2] = 1;
      Index step = shape.end()[-2] * shape.back();
      for (std::size_t d = shape.size() - 2; d-- > 0; step *= shape[d]) strides[d] = step;
      restride(pieces, shape, strides);
    }
    side_.add_name_digits(name, share.place, pieces);
    catalog_.add({file, 0, DType::bf16, name.name}, pieces, name.copy);
    return true;
  }

  Model& model_;
  Side const& side_;
  Checkpoint const& source_;
  StoredView const& view_;
  CatalogChoice const& choice_;
  std::set<TensorId> own_states_;  ///< of the slot that is added
  std::vector<bool> explained_;
  std::map<std::size_t, std::string> dropped_;  ///< by number of the stored tensor: its key
  int vocab_ = -1;                              ///< the axis
  std::vector<PaddingRows> padding_;
  std::set<std::pair<TensorId, Index>> padded_;  ///< first rows of padding_
  Catalog catalog_;
  std::vector<InternedPiece> pieces_;            ///< of the chunk that is added
  std::vector<std::vector<PlacedName>> placed_;  ///< of the names of each chunk; empty for a source
                                                 ///< without shares
  std::map<std::size_t, KnownTable> tables_;     ///< by the first share that has the table
  bool unknown_form_ = false;                    ///< see unknown_form()
};

}  // namespace

SourceCatalog source_catalog(Model& model, Side const& side, Checkpoint const& source,
                             StoredView const& view, std::span<PipelineChunk const> chunks,
                             CatalogChoice const& choice) {
  CatalogBuilder builder(model, side, source, view, choice);
  SourceCatalog found;
  if (auto const failed = capture([&] { found = builder.run(StoredShares(source, view, chunks)); }))
    throw builder.unknown_form() ? failed->of_unknown_form() : *failed;
  return found;
}

}  // namespace reshard
