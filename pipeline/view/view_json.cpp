#include <fmt/ranges.h>

#include "pipeline/view/view_model.hpp"

namespace reshard {
namespace {

/// Numbers by the million: they are written at once, not kept as Json values.
class Writer {
 public:
  explicit Writer(LayoutView const& view) : view_(view) {}

  std::string run() {
    out_ = R"({"reshard_view":1,"kind":"layout",)";
    member("title", view_.title);
    member("made_by", view_.made_by);
    member("map", view_.map);
    out_ += fmt::format("\"stored_names\":{},", view_.stored_names);
    list("warnings", view_.warnings,
         [this](std::string const& text) { out_ += json_quoted(text); });
    list("sides", view_.sides, [this](ViewSide const& side) { add(side); });
    list("stored", view_.stored, [this](std::string const& text) { out_ += json_quoted(text); });
    list("tensors", view_.tensors, [this](ViewTensor const& tensor) { add(tensor); });
    if (!view_.job.is_null()) out_ += fmt::format("\"job\":{},", view_.job.dump());
    list("flows", view_.flows, [this](ViewFlow const& flow) {
      number_list({flow.from, flow.to, flow.bytes});
    });
    close('}');
    return std::move(out_);
  }

 private:
  void member(std::string_view key, std::string_view text) {
    out_ += fmt::format("\"{}\":{},", key, json_quoted(text));
  }
  template <class Number>
  void number(std::string_view key, Number value) {
    out_ += fmt::format("\"{}\":{},", key, value);
  }

  template <class Items, class Each>
  void list(std::string_view key, Items const& items, Each const& each) {
    out_ += fmt::format("\"{}\":[", key);
    for (auto const& item : items) {
      each(item);
      out_ += ',';
    }
    close(']');
    out_ += ',';
  }

  /// Ends a list or an object whose last member has left a comma.
  void close(char bracket) {
    if (out_.back() == ',') out_.pop_back();
    out_ += bracket;
  }

  void number_list(std::initializer_list<std::uint64_t> numbers) {
    out_ += fmt::format("[{}]", fmt::join(numbers, ","));
  }

  void add(ViewSide const& side) {
    out_ += '{';
    member("role", side.role);
    member("path", side.path);
    member("format", side.format);
    member("layout", side.layout);
    list("mesh", side.mesh.axes(), [this](MeshAxis const& axis) {
      out_ += '{';
      member("name", axis.name);
      number("size", axis.size);
      close('}');
    });
    list("owners", side.owners, [this](ViewOwner const& owner) { add(owner); });
    close('}');
  }

  void add(ViewOwner const& owner) {
    out_ += '{';
    member("label", owner.label);
    member("file", owner.file);
    out_ += fmt::format("\"at\":[{}],", fmt::join(owner.at, ","));
    number("bytes", owner.bytes);
    number("tensors", owner.tensors);
    member("layers", owner.layers);
    member("experts", owner.experts);
    close('}');
  }

  void add(ViewTensor const& tensor) {
    out_ += '{';
    member("name", tensor.name);
    if (tensor.layer) number("layer", *tensor.layer);
    member("dtype", name(tensor.dtype));
    number("bits", bits(tensor.dtype));
    list("axes", tensor.axes, [this](std::string const& axis) { out_ += json_quoted(axis); });
    out_ += fmt::format("\"shape\":[{}],\"boxes\":[", fmt::join(tensor.shape, ","));
    for (std::size_t s = 0; s < view_.sides.size(); ++s) {
      out_ += '[';
      for (ViewBox const& box : tensor.boxes[s]) add(box, view_.sides[s], tensor.axes.size());
      close(']');
      out_ += ',';
    }
    close(']');
    out_ += '}';
  }

  /// [owner, stored, flags, begin, end, …]; behind the ranges of a box with gaps the number of its
  /// elements.
  void add(ViewBox const& box, ViewSide const& side, std::size_t axes) {
    out_ += fmt::format("[{},{},{}", box.owner, box.stored, box.flags);
    for (std::size_t d = 0; d < axes; ++d) {
      Run const& run = side.ranges[box.first_range + d];
      out_ += fmt::format(",{},{}", run.begin, run.end);
    }
    if ((box.flags & box_has_gaps) != 0) out_ += fmt::format(",{}", box.elements);
    out_ += "],";
  }

  LayoutView const& view_;
  std::string out_;
};

}  // namespace

std::string layout_json(LayoutView const& view) { return Writer(view).run(); }

}  // namespace reshard
