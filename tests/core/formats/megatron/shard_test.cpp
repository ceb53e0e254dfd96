#include "core/formats/megatron/headers/shard.hpp"

#include <gtest/gtest.h>

#include "core/formats/megatron/mcore/args.hpp"
#include "tests/core/formats/megatron/support.hpp"

namespace reshard::megatron {
namespace {

using pickle::Document;
using pickle::Kind;
using pickle::Node;
using pickle::NodeId;

/// A minimal file, changed by `edit(document, root, model)`.
using Edit = std::function<void(Document&, NodeId, NodeId)>;

Document document_with(Edit const& edit) {
  Document document;
  NodeId const root = document.root = document.add_dict();
  document.set(root, "args", add_namespace(document, {{"num_layers", Json(1)}}));
  document.set(root, "checkpoint_version", document.add_real(3.0));
  document.set(root, "iteration", document.add_int(5));
  NodeId const model = document.add_dict();
  document.set(model, "decoder.layers.0.weight", document.add_tensor(DType::bf16, {2, 2}));
  document.set(root, "model", model);
  edit(document, root, model);
  return document;
}

ShardHeader header_with(Edit const& edit) {
  TempDirectory const root;
  auto const path = root.path() / "model_optim_rng.pt";
  write_torch_file(path, document_with(edit));
  return read_shard_header(File::open_for_reading(path));
}

NodeId add_bytes_io(Document& d, std::string_view payload) {
  Node node;
  node.kind = Kind::reduce;
  node.new_object = true;
  node.callable = d.add_global("_io", "BytesIO");
  node.arguments = d.add_tuple();
  node.state = d.add_tuple({d.add_bytes(payload), d.add_int(0), d.add_none()});
  return d.add(std::move(node));
}

TEST(ShardHeader, ReadsAMinimalFile) {
  auto const header = header_with([](Document&, NodeId, NodeId) {});
  EXPECT_EQ(header.args.dump(), R"({"num_layers": 1})");
  EXPECT_EQ(header.iteration, 5);
  ASSERT_EQ(header.chunks.size(), 1U);
  ASSERT_EQ(header.chunks[0].tensors.size(), 1U);
  EXPECT_EQ(header.chunks[0].tensors[0].name, "decoder.layers.0.weight");
  EXPECT_EQ(header.chunks[0].tensors[0].size_bytes, 8U);
}

TEST(ShardHeader, SortsTopLevelKeys) {
  auto const header = header_with([](Document& d, NodeId root, NodeId) {
    d.set(root, "optimizer", d.add_dict());
    d.set(root, "rng_state", d.add_list());
    d.set(root, "opt_param_scheduler", d.add_dict());
    d.set(root, "modelopt_state", d.add_dict());
    d.set(root, "models", d.add_dict());
  });
  EXPECT_TRUE(header.has_optimizer);
  EXPECT_TRUE(header.has_rng);
  EXPECT_EQ(header.other_keys,
            (std::vector<std::string>{"opt_param_scheduler", "modelopt_state", "models"}));
}

TEST(ShardHeader, AnOptimizerOfNoneIsNone) {
  auto const header = header_with([](Document& d, NodeId root, NodeId) {
    d.set(root, "optimizer", d.add_none());
    d.set(root, "random_rng_state", d.add_tuple());
    d.erase(root, "args");
  });
  EXPECT_FALSE(header.has_optimizer);
  EXPECT_TRUE(header.has_rng);
  EXPECT_TRUE(header.args.is_null());
}

TEST(ShardHeader, KnowsEveryKindOfExtraState) {
  auto const header = header_with([](Document& d, NodeId, NodeId model) {
    d.set(model, "a._extra_state", d.add_none());
    d.set(model, "b._extra_state", d.add_tensor(DType::u8, {0}));
    d.set(model, "c._extra_state", d.add_tensor(DType::u8, {300}));
    d.set(model, "d._extra_state", add_bytes_io(d, std::string("\x80\x02\xff\x00z", 5)));
    d.set(model, "e._extra_state", d.add_dict());
    d.set(model, "f._extra_state", d.add_tensor(DType::f32, {1}));
    d.set(model, "not_extra_state_weight", d.add_tensor(DType::u8, {1}));
  });
  ASSERT_EQ(header.chunks[0].tensors.size(), 2U);
  auto const& extras = header.chunks[0].extras;
  ASSERT_EQ(extras.size(), 6U);
  std::vector<ExtraKind> kinds;
  for (auto const& extra : extras) kinds.push_back(extra.kind);
  EXPECT_EQ(kinds, (std::vector<ExtraKind>{ExtraKind::none, ExtraKind::uint8_tensor,
                                           ExtraKind::uint8_tensor, ExtraKind::bytes_io,
                                           ExtraKind::other, ExtraKind::other}));
  EXPECT_EQ(extras[1].size_bytes, 0U);
  EXPECT_EQ(extras[2].size_bytes, 300U);
  EXPECT_EQ(extras[2].tensor.size_bytes, 300U);
  EXPECT_EQ(extras[3].size_bytes, 5U);
}

TEST(ShardHeader, NumberedChunksComeInOrderOfTheirNumbers) {
  auto const header = header_with([](Document& d, NodeId root, NodeId) {
    d.erase(root, "model");
    for (int i = 11; i >= 0; --i) {
      NodeId const chunk = d.add_dict();
      d.set(chunk, fmt::format("chunk {}", i), d.add_tensor(DType::f32, {i}));
      d.set(root, fmt::format("model{}", i), chunk);
    }
  });
  ASSERT_EQ(header.chunks.size(), 12U);
  for (std::size_t i = 0; i < 12; ++i)
    EXPECT_EQ(header.chunks[i].tensors[0].name, fmt::format("chunk {}", i));
}

TEST(ShardHeader, AnEmptyChunkIsAChunk) {
  auto const header = header_with(
      [](Document& d, NodeId, NodeId model) { d.erase(model, "decoder.layers.0.weight"); });
  ASSERT_EQ(header.chunks.size(), 1U);
  EXPECT_TRUE(header.chunks[0].tensors.empty());
}

TEST(ShardHeader, ScalarsAmongTheWeightsAreUnplaced) {
  auto const header = header_with([](Document& d, NodeId, NodeId model) {
    d.set(model, "none", d.add_none());
    d.set(model, "number", d.add_int(1));
    d.set(model, "text", d.add_string("x"));
  });
  EXPECT_EQ(header.unplaced, (std::vector<std::string>{"none", "number", "text"}));
}

struct Refusal {
  std::string_view what;
  Edit edit;
  std::string_view sentence;
};

std::vector<Refusal> const refusals = {
    {"version 2",
     [](Document& d, NodeId root, NodeId) { d.set(root, "checkpoint_version", d.add_real(2.0)); },
     "checkpoint_version is 2, expected 3.0"},
    {"version 4",
     [](Document& d, NodeId root, NodeId) { d.set(root, "checkpoint_version", d.add_int(4)); },
     "checkpoint_version is 4, expected 3.0"},
    {"no version", [](Document& d, NodeId root, NodeId) { d.erase(root, "checkpoint_version"); },
     "checkpoint_version is 0, expected 3.0"},
    {"version of text",
     [](Document& d, NodeId root, NodeId) { d.set(root, "checkpoint_version", d.add_string("3")); },
     "expected a number"},
    {"args of a number",
     [](Document& d, NodeId root, NodeId) { d.set(root, "args", d.add_int(3)); },
     "'args': expected an argparse.Namespace"},
    {"iteration of text",
     [](Document& d, NodeId root, NodeId) { d.set(root, "iteration", d.add_string("3")); },
     "expected an integer"},
    {"no model",
     [](Document& d, NodeId root, NodeId) {
       d.erase(root, "model");
       d.set(root, "module", d.add_dict());
     },
     "found module"},
    {"model of None", [](Document& d, NodeId root, NodeId) { d.set(root, "model", d.add_none()); },
     "'model': expected a dict of tensors"},
    {"gap",
     [](Document& d, NodeId root, NodeId) {
       d.erase(root, "model");
       d.set(root, "model1", d.add_dict());
     },
     "'model0' is missing, while 'model1'"},
    {"both forms", [](Document& d, NodeId root, NodeId) { d.set(root, "model0", d.add_dict()); },
     "has 'model' beside"},
    {"model and model1",
     [](Document& d, NodeId root, NodeId) { d.set(root, "model1", d.add_dict()); },
     "has 'model' beside"},
    {"before Core",
     [](Document& d, NodeId, NodeId model) { d.set(model, "language_model", d.add_dict()); },
     "before Megatron Core"},
    {"nested", [](Document& d, NodeId, NodeId model) { d.set(model, "vision", d.add_dict()); },
     "['vision']: expected a tensor, found a dict"},
    {"object",
     [](Document& d, NodeId, NodeId model) {
       d.set(model, "w", d.add_object("m", "Sub", d.add_dict()));
     },
     "found m.Sub"},
    {"number as a key",
     [](Document& d, NodeId, NodeId model) {
       NodeId const key = d.add_int(3);
       NodeId const value = d.add_int(4);
       d.at(model).items.push_back(key), d.at(model).items.push_back(value);
     },
     "'model' has 2 keys, of which 1 are distinct strings"},
    {"key twice",
     [](Document& d, NodeId, NodeId model) {
       NodeId const key = d.add_string("decoder.layers.0.weight");
       NodeId const value = d.add_none();
       d.at(model).items.push_back(key), d.at(model).items.push_back(value);
     },
     "of which 1 are distinct strings"},
    {"a list", [](Document& d, NodeId, NodeId) { d.root = d.add_list(); },
     "expected a dict with 'args' and 'model'"},
};

TEST(ShardHeader, SaysWhatItCannotRead) {
  for (auto const& c : refusals) {
    SCOPED_TRACE(c.what);
    auto const sentence = sentence_of([&] { header_with(c.edit); });
    EXPECT_TRUE(contains(sentence, c.sentence)) << sentence;
    EXPECT_TRUE(contains(sentence, "model_optim_rng.pt: ")) << sentence;
  }
}

TEST(ShardHeader, CutFilesAreErrors) {
  TempDirectory const root;
  auto const path = root.path() / "model_optim_rng.pt";
  write_torch_file(path, document_with([](Document&, NodeId, NodeId) {}));
  auto const size = std::filesystem::file_size(path);
  for (std::uintmax_t left = 0; left < size; left += 7) {
    std::filesystem::copy_file(path, root.path() / "cut.pt",
                               std::filesystem::copy_options::overwrite_existing);
    std::filesystem::resize_file(root.path() / "cut.pt", left);
    auto const sentence =
        sentence_of([&] { read_shard_header(File::open_for_reading(root.path() / "cut.pt")); });
    EXPECT_TRUE(contains(sentence, "cut.pt")) << sentence;
  }
}

}  // namespace
}  // namespace reshard::megatron
