#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "core/formats/hdf5/target.hpp"
#include "core/plan/equal/replicas.hpp"
#include "pipeline/view/view_model.hpp"

namespace reshard {
namespace {

constexpr std::size_t most_boxes = 4'000'000;
/// Of one piece; a piece of more parts is shown by the smallest box around them.
constexpr std::size_t most_boxes_of_piece = 64;

/// Weights that choose experts: who has them has no experts.
constexpr std::string_view router_names = "router.";

/// The pieces of a file, added up.
struct Holdings {
  std::set<Index> layers;
  std::set<Index> experts;
};

std::string text_of(std::set<Index> const& numbers) {
  return ranges_text({numbers.begin(), numbers.end()});
}

Index last_index(DomainAxis const& axis) { return axis.runs.empty() ? 0 : axis.runs.back().end; }

class Builder {
 public:
  Builder(LayoutView& view, Model const& model, std::vector<Catalog const*> const& catalogs,
          std::size_t most_tensors)
      : view_(view),
        model_(model),
        catalogs_(catalogs),
        most_tensors_(most_tensors),
        stored_names_(view.stored_names) {
    for (ViewSide const& side : view.sides) holdings_.emplace_back(side.owners.size());
  }

  void run() {
    for (std::size_t t = 0; t < model_.tensors().size(); ++t)
      if (model_.exists(TensorId(t))) add(t);
    std::stable_sort(view_.tensors.begin(), view_.tensors.end(),
                     [](ViewTensor const& a, ViewTensor const& b) { return a.layer < b.layer; });
    for (std::size_t s = 0; s < holdings_.size(); ++s)
      for (std::size_t o = 0; o < holdings_[s].size(); ++o) {
        view_.sides[s].owners[o].layers = text_of(holdings_[s][o].layers);
        view_.sides[s].owners[o].experts = text_of(holdings_[s][o].experts);
      }
  }

 private:
  /// A tensor of the model, whose items are its layers, or itself.
  struct Current {
    std::size_t tensor = 0;
    bool by_layer = false;
    std::map<Index, ViewTensor> items;  ///< by layer, -1 without
    ViewTensor blank;
    NumbersInName numbers;
    int expert = -1;  ///< which of the item's axes counts experts
  };

  void add(std::size_t t) {
    Current current = described(t);
    for (std::size_t s = 0; s < catalogs_.size(); ++s) add_side(current, s);
    for (auto& [layer, item] : current.items) {
      count_tensor(item);
      view_.tensors.push_back(std::move(item));
    }
    if (view_.tensors.size() > most_tensors_ || boxes_ > most_boxes)
      fail(ErrorKind::usage,
           "{}: a page shows at most {} tensors in {} boxes, and there are more here. `reshard ls "
           "--json` lists any number of tensors.",
           view_.title, most_tensors_, most_boxes);
  }

  Current described(std::size_t t) const {
    LogicalTensor const& tensor = model_.tensors()[t];
    Current current;
    current.tensor = t;
    current.by_layer = !stored_names_ && model_.layer_axis(TensorId(t)).has_value();
    current.blank.name = tensor.name;
    std::vector<std::string> const labels = axis_labels(model_, TensorId(t));
    std::vector<DomainAxis> const domain = model_.domain(tensor);
    for (std::size_t d = current.by_layer ? 1 : 0; d < tensor.axes.size(); ++d) {
      if (!stored_names_ && !tensor.name.starts_with(router_names) &&
          model_.axes()[tensor.axes[d].axis].name == "expert")
        current.expert = static_cast<int>(current.blank.axes.size());
      current.blank.axes.push_back(stored_names_ ? fmt::format("dim {}", d) : labels[d]);
      current.blank.shape.push_back(last_index(domain[d]));
    }
    if (!stored_names_) return current;
    current.numbers = numbers_in_name(tensor.name);
    current.blank.layer = current.numbers.layer;
    return current;
  }

  ViewTensor& item_of(Current& current, Index layer) const {
    auto const [at, is_new] = current.items.try_emplace(layer, current.blank);
    if (!is_new || layer < 0) return at->second;
    std::string const& axis =
        model_.axes()[model_.tensors()[current.tensor].axes.front().axis].name;
    at->second.name = part_prefix(axis, layer) + current.blank.name;
    if (axis == "layer") at->second.layer = layer;
    return at->second;
  }

  void add_side(Current& current, std::size_t s) {
    Catalog const& catalog = *catalogs_[s];
    TensorPieces const& all = catalog.tensors[current.tensor];
    std::set<std::pair<std::uint32_t, std::uint64_t>> read;
    Distinct const distinct = distinct_pieces(all, catalog);
    for (std::size_t i = 0; i < distinct.size(); ++i)
      read.emplace(distinct.blob(i), all.box(distinct.chosen[i]));
    for (std::size_t i = 0; i < all.size(); ++i) {
      Blob const& blob = catalog.blobs[all.blob(i)];
      ViewBox box;
      bool const computed = blob.file >= catalog.real_files();
      box.owner =
          computed ? catalog.views[blob.file - catalog.real_files()].stored.file : blob.file;
      box.stored = number_of(blob.name);
      box.flags = all.is_copy(i)                             ? box_is_copy
                  : read.contains({all.blob(i), all.box(i)}) ? 0
                                                             : box_is_replica;
      if (computed) box.flags |= box_is_computed;
      current.blank.dtype = blob.dtype;
      add_piece(current, s, all[i], box);
    }
  }

  void add_piece(Current& current, std::size_t s, Piece const& piece, ViewBox const& box) {
    LogicalTensor const& tensor = model_.tensors()[current.tensor];
    std::vector<AxisRuns> parts;
    for (LogicalAxis const& axis : tensor.axes) parts.push_back(part_of_axis(piece, axis));
    std::vector<Index> layers{-1};
    if (current.by_layer) {
      layers.clear();
      for (Run const& run : parts.front().runs)
        for (Index l = run.begin; l < run.end; ++l)
          if (model_.in_set(tensor.axes.front().set, l)) layers.push_back(l);
      parts.erase(parts.begin());
    }
    for (Index const layer : layers) {
      ViewTensor& item = item_of(current, layer);
      item.dtype = current.blank.dtype;
      add_boxes(item, s, parts, box);
      hold(current, item, s, parts, box.owner);
    }
  }

  void add_boxes(ViewTensor& item, std::size_t s, std::vector<AxisRuns> parts, ViewBox box) {
    std::size_t count = 1;
    for (AxisRuns const& part : parts) count *= std::min(part.runs.size(), most_boxes_of_piece + 1);
    bool gaps = count > most_boxes_of_piece;
    if (gaps)
      for (AxisRuns& part : parts) part.runs = {{part.runs.front().begin, part.runs.back().end}};
    box.elements = 1;
    for (AxisRuns const& part : parts) {
      gaps = gaps || part.hull;
      box.elements *= part.count;
    }
    if (gaps) box.flags |= box_has_gaps;
    ViewSide& side = view_.sides[s];
    side.owners[box.owner].bytes +=
        static_cast<std::uint64_t>(box.elements) * static_cast<std::uint64_t>(bits(item.dtype)) / 8;
    std::vector<std::size_t> at(parts.size(), 0);
    for (bool more = true; more; more = advance(at, parts)) {
      box.first_range = side.ranges.size();
      if (!gaps) box.elements = 1;
      for (std::size_t d = 0; d < parts.size(); ++d) {
        Run const& run = parts[d].runs[at[d]];
        side.ranges.push_back(run);
        if (!gaps) box.elements *= run.end - run.begin;
      }
      item.boxes[s].push_back(box);
      ++boxes_;
    }
  }

  /// The next combination of runs; false when there is none.
  static bool advance(std::vector<std::size_t>& at, std::vector<AxisRuns> const& parts) {
    for (std::size_t d = parts.size(); d-- > 0;) {
      if (++at[d] < parts[d].runs.size()) return true;
      at[d] = 0;
    }
    return false;
  }

  void hold(Current const& current, ViewTensor const& item, std::size_t s,
            std::vector<AxisRuns> const& parts, std::uint32_t owner) {
    Holdings& holdings = holdings_[s][owner];
    if (item.layer) holdings.layers.insert(*item.layer);
    if (current.numbers.expert) holdings.experts.insert(*current.numbers.expert);
    if (current.expert < 0) return;
    for (Run const& run : parts[static_cast<std::size_t>(current.expert)].runs)
      for (Index e = run.begin; e < run.end; ++e) holdings.experts.insert(e);
  }

  void count_tensor(ViewTensor const& item) {
    for (std::size_t s = 0; s < catalogs_.size(); ++s) {
      std::set<std::uint32_t> owners;
      for (ViewBox const& box : item.boxes[s]) owners.insert(box.owner);
      for (std::uint32_t const owner : owners) ++view_.sides[s].owners[owner].tensors;
    }
  }

  std::uint32_t number_of(std::string const& stored) {
    auto const [at, is_new] = numbers_.emplace(stored, narrow<std::uint32_t>(view_.stored.size()));
    if (is_new) view_.stored.push_back(stored);
    return at->second;
  }

  LayoutView& view_;
  Model const& model_;
  std::vector<Catalog const*> const& catalogs_;
  std::size_t const most_tensors_;
  bool stored_names_;
  std::vector<std::vector<Holdings>> holdings_;
  std::unordered_map<std::string, std::uint32_t> numbers_;
  std::size_t boxes_ = 0;
};

}  // namespace

void add_tensors(LayoutView& view, Model const& model, std::vector<Catalog const*> const& catalogs,
                 std::size_t most_tensors) {
  RESHARD_EXPECT(catalogs.size() == view.sides.size());
  Builder(view, model, catalogs, most_tensors).run();
}

std::vector<ViewFlow> flows_of(Plan const& plan, Catalog const& source) {
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> bytes;
  for (Cell const& cell : plan.cells)
    for (Region const& region : plan.regions_of(cell)) {
      std::uint32_t file = region.src_file;
      if (file >= source.real_files()) file = source.views[file - source.real_files()].stored.file;
      bytes[{file, region.to}] += bytes_of(region, plan.dims_of(region));
    }
  std::vector<ViewFlow> flows;
  for (auto const& [ends, moved] : bytes) flows.push_back({ends.first, ends.second, moved});
  return flows;
}

}  // namespace reshard
