#include "stages/plan/source/catalog/quant_source.hpp"

#include <set>

#include "core/base/capture.hpp"
#include "core/mapping/quant_finder.hpp"
#include "stages/plan/source/catalog/source_names.hpp"

namespace reshard {

bool may_be_quantised(Checkpoint const& source, StoredView const& view, MapFile const& map) {
  std::set<std::string> words;  // what a name has at its end, behind the word for the weight
  for (MapQuant const& quant : map.quant)
    for (MapQuantPart const& part : quant.parts)
      if (part.name != "values" && !part.optional) {
        std::string const word =
            part.stored.starts_with("weight") ? part.stored.substr(6) : part.stored;
        words.insert(word.substr(word.rfind('.') + 1));
      }
  bool found = false;
  each_stored(source, view, [&](std::string const& name, std::vector<Index> const&) {
    std::string_view const last = std::string_view(name).substr(
        name.rfind('.') == std::string::npos ? 0 : name.rfind('.') + 1);
    for (std::string const& word : words)
      found = found || last.find(word) != std::string_view::npos;
  });
  return found;
}

void add_quantised(Model& model, Side const& side, StoredShares const& shares,
                   StoredTable const& stored) {
  QuantFinder finder(model, side);
  std::vector<std::vector<StoredName>> const names = shares.names(side);
  for (std::size_t i = 0; i < shares.size(); ++i) {
    StoredShare const share = shares[i];
    finder.look(share.place, names[share.chunk], finder_over(share.tensors, stored), share.where);
  }
  finder.apply(model);
}

void require_logical_form(Model const& model) {
  for (std::size_t t = 0; t < model.tensors().size(); ++t) {
    if (!model.quantised(TensorId(t))) continue;
    auto const refused = capture([&] {
      fail(
          ErrorKind::usage,
          "[target] format = \"hdf5\": '{}' is quantised, and its parts have no logical form. Set model.map = \"none\" to keep the stored tensors "
          "(Hugging Face and DCP sources), or model.quant = \"dequantise-bf16\".",
          model.tensors()[t].name);
    });
    throw refused->of_unknown_form();
  }
}

}  // namespace reshard
