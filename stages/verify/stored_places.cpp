#include "stages/verify/stored_places.hpp"

#include <algorithm>
#include <tuple>
#include <unordered_set>

#include "core/base/error.hpp"
#include "core/plan/equal/replicas.hpp"

namespace reshard {
namespace {

bool is_empty(PieceDigits const& digits) {
  return std::any_of(digits.begin(), digits.end(),
                     [](PieceDigit const& digit) { return digit.count == 0; });
}

Index extent_of(DomainAxis const& axis) {
  Index extent = 0;
  for (Run const& run : axis.runs) extent += run.end - run.begin;
  return extent;
}

/// Where an index stands among those of its runs.
Index position_in(DomainAxis const& axis, Index index) {
  Index before = 0;
  for (Run const& run : axis.runs) {
    if (index >= run.begin && index < run.end) return before + index - run.begin;
    before += run.end - run.begin;
  }
  broken("an index outside of its tensor", __FILE__, __LINE__);
}

Index index_in(DomainAxis const& axis, Index position) {
  for (Run const& run : axis.runs) {
    if (position < run.end - run.begin) return run.begin + position;
    position -= run.end - run.begin;
  }
  broken("a place outside of its tensor", __FILE__, __LINE__);
}

bool has_layers(Model const& model, std::size_t tensor) {
  std::vector<DomainAxis> const domain = model.domain(model.tensors()[tensor]);
  auto const layer = model.layer_axis(TensorId(tensor));
  return layer && !domain.empty() && domain.front().axis == *layer && domain.front().div == 1;
}

}  // namespace

std::uint64_t part_count(Model const& model, std::uint32_t tensor) {
  if (!has_layers(model, tensor)) return 1;
  return static_cast<std::uint64_t>(extent_of(model.domain(model.tensors()[tensor]).front()));
}

std::vector<TensorPart> parts_of(Model const& model) {
  std::vector<TensorPart> parts;
  for (std::uint32_t t = 0; t < model.tensors().size(); ++t) {
    if (!model.exists(TensorId(t))) continue;
    if (!has_layers(model, t)) {
      parts.push_back({t});
      continue;
    }
    DomainAxis const layers = model.domain(model.tensors()[t]).front();
    for (Index position = 0; position < extent_of(layers); ++position)
      parts.push_back({t, index_in(layers, position)});
  }
  return parts;
}

StoredPlaces::StoredPlaces(Model const& model, Catalog const& catalog)
    : model_(model), catalog_(catalog) {
  domains_.resize(model.tensors().size());
  first_part_.resize(model.tensors().size());
  by_layer_.resize(model.tensors().size());
  std::vector<TensorPart> const parts = parts_of(model);
  part_count_ = parts.size();
  for (std::size_t p = parts.size(); p-- > 0;) {
    first_part_[parts[p].tensor] = static_cast<std::uint32_t>(p);
    by_layer_[parts[p].tensor] = parts[p].layer.has_value();
  }
  for (std::size_t t = 0; t < catalog.tensors.size(); ++t)
    if (model.exists(TensorId(t))) add_tensor(static_cast<std::uint32_t>(t));
  std::stable_sort(holders_.begin(), holders_.end(),
                   [](Holder const& a, Holder const& b) { return a.blob < b.blob; });
  sort_stretches();
}

void StoredPlaces::add_tensor(std::uint32_t tensor) {
  TensorPieces const& all = catalog_.tensors[tensor];
  domains_[tensor] = model_.domain(model_.tensors()[tensor]);
  std::unordered_set<std::uint64_t> counted;
  for (bool const copies : {false, true})
    for (std::uint32_t p = 0; p < all.size(); ++p) {
      if (all.is_copy(p) != copies || is_empty(form_digits(all.form(p))) ||
          bits(catalog_.blobs[all.blob(p)].dtype) % 8 != 0)
        continue;
      bool const is_new = counted.insert(all.box(p)).second;
      holders_.push_back({all.blob(p), tensor, p, !is_new});
    }
}

void StoredPlaces::sort_stretches() {
  for (std::size_t begin = 0; begin < holders_.size();) {
    std::uint32_t const number = holders_[begin].blob;
    Blob const& blob = catalog_.blobs[number];
    Index last = 0;
    for (; begin < holders_.size() && holders_[begin].blob == number; ++begin)
      last =
          std::max(last, catalog_.tensors[holders_[begin].tensor].reach_of(holders_[begin].piece));
    stretches_.push_back(
        {blob.file, blob.offset_bytes,
         blob.offset_bytes + static_cast<std::uint64_t>(last) * element_bytes(number), 0, number});
  }
  std::sort(stretches_.begin(), stretches_.end(), [](Stretch const& a, Stretch const& b) {
    return std::tie(a.file, a.begin, a.blob) < std::tie(b.file, b.begin, b.blob);
  });
  for (std::size_t i = 0; i < stretches_.size(); ++i) {
    bool const first = i == 0 || stretches_[i - 1].file != stretches_[i].file;
    stretches_[i].furthest =
        first ? stretches_[i].end : std::max(stretches_[i].end, stretches_[i - 1].furthest);
  }
}

std::size_t StoredPlaces::element_bytes(std::uint32_t blob) const {
  return static_cast<std::size_t>(bits(catalog_.blobs[blob].dtype) / 8);
}

StoredPlaces::PieceSteps StoredPlaces::steps_of(Holder const& holder) const {
  Piece const piece = catalog_.tensors[holder.tensor][holder.piece];
  std::vector<DomainAxis> const& domain = domains_[holder.tensor];
  PieceSteps result{
      holder.tensor,  holder.piece, piece.offset, {}, std::vector<Index>(domain.size(), 0), 0, 1,
      holder.replica, true};
  for (PieceDigit const& digit : piece.digits) {
    auto const axis = std::find_if(domain.begin(), domain.end(),
                                   [&](DomainAxis const& a) { return a.axis == digit.axis; });
    RESHARD_EXPECT(axis != domain.end());
    auto const number = static_cast<std::size_t>(axis - domain.begin());
    Index const weight = digit.div / axis->div;
    result.first[number] += digit.first * weight;
    if (digit.count > 1) result.steps.push_back({digit.stride, digit.count, number, weight});
  }
  for (PieceCopy const& copy : piece.copies)
    if (copy.count > 1) result.steps.push_back({copy.stride, copy.count, no_axis, 0});
  std::stable_sort(result.steps.begin(), result.steps.end(),
                   [](Step const& a, Step const& b) { return a.stride > b.stride; });
  std::tuple<std::size_t, Index> finer{no_axis, 0};
  result.inner = result.steps.size();
  for (std::size_t s = result.steps.size(); s-- > 0 && result.steps[s].stride == result.block;) {
    Step const& step = result.steps[s];
    if (step.axis == no_axis || (step.axis == 0 && by_layer_[holder.tensor]))
      break;  // the following elements are of another copy or part
    result.block *= step.count;
    result.inner = s;
    // Axes of a tensor come in the order of its row-major bytes, digits of an axis by weight.
    bool const in_order = step.axis < std::get<0>(finer) ||
                          (step.axis == std::get<0>(finer) && step.weight > std::get<1>(finer));
    result.ascending = result.ascending && in_order;
    finer = {step.axis, step.weight};
  }
  return result;
}

std::vector<StoredPlaces::PieceSteps> const& StoredPlaces::pieces_in(std::uint32_t blob) const {
  if (known_blob_ == blob) return known_pieces_;
  known_pieces_.clear();
  last_piece_ = 0;
  auto const [begin, end] =
      std::equal_range(holders_.begin(), holders_.end(), Holder{blob, 0, 0, false},
                       [](Holder const& a, Holder const& b) { return a.blob < b.blob; });
  for (auto holder = begin; holder != end; ++holder) known_pieces_.push_back(steps_of(*holder));
  known_blob_ = blob;
  return known_pieces_;
}

bool StoredPlaces::walk(PieceSteps const& piece, Index element, Walked& walked) {
  Index left = element - piece.offset;
  if (left < 0) return false;
  walked.indices = piece.first;
  walked.repeated = false;
  walked.in_block = 0;
  for (std::size_t s = 0; s < piece.steps.size(); ++s) {
    Step const& step = piece.steps[s];
    if (s == piece.inner) walked.in_block = left;
    Index const value = step.stride == 0 ? 0 : left / step.stride;
    if (value >= step.count) return false;
    left -= value * step.stride;
    if (step.axis == no_axis)
      walked.repeated = walked.repeated || value > 0;
    else
      walked.indices[step.axis] += value * step.weight;
  }
  return left == 0;
}

std::optional<StoredRun> StoredPlaces::run_in(Stretch const& stretch,
                                              std::uint64_t offset_bytes) const {
  if (offset_bytes >= stretch.end) return std::nullopt;
  auto const element =
      static_cast<Index>((offset_bytes - stretch.begin) / element_bytes(stretch.blob));
  auto const& pieces = pieces_in(stretch.blob);
  Walked walked;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    std::size_t const p = (last_piece_ + i) % pieces.size();
    PieceSteps const& piece = pieces[p];
    if (!walk(piece, element, walked)) continue;
    last_piece_ = p;
    std::uint32_t part = first_part_[piece.tensor];
    if (by_layer_[piece.tensor])
      part += static_cast<std::uint32_t>(
          position_in(domains_[piece.tensor].front(), walked.indices.front()));
    return StoredRun{part,
                     piece.tensor,
                     piece.piece,
                     stretch.blob,
                     element,
                     piece.block - walked.in_block,
                     piece.replica || walked.repeated,
                     piece.ascending};
  }
  return std::nullopt;
}

std::optional<StoredRun> StoredPlaces::run_with(std::uint32_t file,
                                                std::uint64_t offset_bytes) const {
  auto next = std::upper_bound(
      stretches_.begin(), stretches_.end(), std::tuple(file, offset_bytes),
      [](auto const& place, Stretch const& s) { return place < std::tuple(s.file, s.begin); });
  while (next != stretches_.begin()) {
    --next;
    if (next->file != file || next->furthest <= offset_bytes) break;
    if (auto const run = run_in(*next, offset_bytes)) return run;
  }
  return std::nullopt;
}

StoredRun StoredPlaces::run_at(std::uint32_t file, std::uint64_t offset_bytes) const {
  auto const run = run_with(file, offset_bytes);
  RESHARD_EXPECT(run && begin_of(*run) == offset_bytes);
  return *run;
}

std::uint64_t StoredPlaces::begin_of_element(std::uint32_t file, std::uint64_t offset_bytes) const {
  auto const run = run_with(file, offset_bytes);
  RESHARD_EXPECT(run);
  return begin_of(*run);
}

std::uint64_t StoredPlaces::begin_of(StoredRun const& run) const {
  return catalog_.blobs[run.blob].offset_bytes +
         static_cast<std::uint64_t>(run.element) * element_bytes(run.blob);
}

std::uint64_t StoredPlaces::row_major(std::uint32_t tensor,
                                      std::vector<Index> const& indices) const {
  std::uint64_t place = 0;
  for (std::size_t d = 0; d < indices.size(); ++d) {
    DomainAxis const& axis = domains_[tensor][d];
    place = place * static_cast<std::uint64_t>(extent_of(axis)) +
            static_cast<std::uint64_t>(position_in(axis, indices[d]));
  }
  return place;
}

std::uint64_t StoredPlaces::place_of(std::uint32_t tensor, std::uint32_t piece,
                                     Index element) const {
  std::uint32_t const blob = catalog_.tensors[tensor].blob(piece);
  Walked walked;
  for (PieceSteps const& steps : pieces_in(blob))
    if (steps.tensor == tensor && steps.piece == piece && walk(steps, element, walked))
      return row_major(tensor, walked.indices);
  broken("an element outside of its piece", __FILE__, __LINE__);
}

std::vector<Index> StoredPlaces::indices_at(std::uint32_t tensor, std::uint64_t place) const {
  std::vector<DomainAxis> const& domain = domains_[tensor];
  std::vector<Index> indices(domain.size(), 0);
  for (std::size_t d = domain.size(); d-- > 0;) {
    auto const extent = static_cast<std::uint64_t>(extent_of(domain[d]));
    indices[d] = index_in(domain[d], static_cast<Index>(place % extent));
    place /= extent;
  }
  return indices;
}

std::optional<StoredElement> StoredPlaces::find(std::uint32_t tensor,
                                                std::vector<Index> const& indices) const {
  std::vector<DomainAxis> const& domain = domains_[tensor];
  Distinct const distinct = distinct_pieces(catalog_.tensors[tensor], catalog_);
  for (std::size_t p = 0; p < distinct.size(); ++p) {
    Piece const piece = distinct[p];
    Index element = piece.offset;
    bool held = true;
    for (PieceDigit const& digit : piece.digits) {
      std::size_t axis = 0;
      while (domain[axis].axis != digit.axis) ++axis;
      Index const value = indices[axis] * domain[axis].div % digit.mod / digit.div - digit.first;
      held = held && value >= 0 && value < digit.count;
      element += value * digit.stride;
    }
    if (!held) continue;
    std::uint32_t const blob = distinct.blob(p);
    return StoredElement{blob, catalog_.blobs[blob].offset_bytes +
                                   static_cast<std::uint64_t>(element) * element_bytes(blob)};
  }
  return std::nullopt;
}

std::string StoredPlaces::text_of(std::uint32_t tensor, std::vector<Index> const& indices) const {
  std::string names;
  bool named = true;
  std::string numbers;
  for (std::size_t d = 0; d < indices.size(); ++d) {
    DomainAxis const& axis = domains_[tensor][d];
    std::string const& name = model_.axes()[axis.axis].name;
    named = named && !(name.front() >= '0' && name.front() <= '9');
    names += fmt::format("{}{}{} {}", d == 0 ? "" : ", ", name,
                         axis.div == 1 ? "" : fmt::format("/{}", axis.div), indices[d]);
    numbers += fmt::format("{}{}", d == 0 ? "" : ", ", indices[d]);
  }
  return named && !indices.empty() ? names : "[" + numbers + "]";
}

}  // namespace reshard
