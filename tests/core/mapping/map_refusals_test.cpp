// What a map must not state, and the words in which it is refused.
#include "core/mapping/sides/side.hpp"
#include "tests/support/expect_refused.hpp"
#include "tests/support/mesh_sizes.hpp"

namespace reshard {
namespace {

using test::expect_refused;

struct Case {
  std::string map;
  std::string words;
};

TEST(MapRefusals, OfTheFile) {
  std::string key = "a";
  for (int part = 0; part < 1000; ++part) key += ".a";
  for (auto const& [map, words] : std::vector<Case>{
           {"[let]\n" + key + " = 1", "m.toml: a key has 1001 parts, at most "},
           {"[axes\n", "Correct the TOML, then run again."},
           {"[adapter.lora]\na = 'A'\nb = 'B'\nrank = 4",
            "m.toml:4: 'rank' is not a key of an adapter. Known: family, prefix, a, b, cut"},
           {"[adapter.lora]\na = 'A'",
            "an adapter needs `a` and `b`, the names of its two matrices"},
           {"[names]\nn = { inn = 'set', text = 'x' }",
            "'inn' is not a key of a name. Known: in, when, text."},
           {"[stored]\na = [ { when = '1' } ]", "an entry needs 'is'"},
           {"[stored]\na = { is = 'x: h', apart = { wen = '1' } }",
            "'wen' is not a key of apart. Known: when, as."},
           {"[rules]\ntp = 'hidden'", "a rule is a list of axes"},
           {"[match]\nname = 'llama'",
            "'name' is not a key of match. Known: model_type, args, config."},
           {"[kept.trainer]\nx = false", "names of Hugging Face are needed here, or true"},
           {"[kept.trainer]\n'a.*' = 'b'", "'a.*' and 'b' need one '*' each, or none"},
           {"axes = 3", "this section must be a table."},
           {"facts = 3", "facts must be a string. Put it in quotes."},
           {"[strored]\na = 1", "'strored' is not a section of a map. Did you mean 'stored'?"},
       })
    expect_refused(ErrorKind::usage, words, [&] { parse_map_file(map, "m.toml"); });
}

void make_names(std::string const& text) {
  MapFile const map = parse_map_file(text, "m.toml");
  Model const model(map, map, {parse_json(R"({"half": 2.5, "list": [1]})", "facts"), "facts", 0});
  Side const side(model, map,
                  {true, test::MeshSizes{2, 1, 1, 1, 2}, {}, {}, {}, "[target] layout"});
  PipelineChunk const chunk{0, 0, {{0, 2, false}}, {}, true, true};
  for (StoredName const& name : side.names(&chunk)) (void)side.pieces(name, {{}, &chunk});
}

TEST(MapRefusals, OfTheModel) {
  std::string const tensors = "tensors = { '' = [ 'a: hidden' ] }\n";
  for (
      auto const& [map, words] : std::vector<Case>{
          {"axes = { hidden = '-1' }", "is -1, a size is needed"},
          {"let = { x = 'y', y = 'x' }\naxes = { hidden = 4 }",
           "is defined in terms of itself. Break the cycle."},
          {"axes = { layer = 4 }\nsets = { layer = { a = 'layer.b', b = 'layer.a' } }",
           "m.toml: set 'layer.a' is defined in terms of itself. Break the cycle."},
          {"axes = { layer = 20000 }\nsets = { layer = { a = 'layer > 1' } }",
           "axis 'layer' has 20000 indices; an axis with sets may have at most 16384. Check facts."},
          {"axes = { hidden = 4 }\ntensors = { '' = [ 'a: hidden', 'a: hidden' ] }",
           "the tensor 'a' is declared twice. Keep one declaration."},
          {"axes = { hidden = 4 }\ntensors = { '' = [ 'a: hidden/x' ] }",
           "'a': the block size 'x' must be a number above zero."},
          {"axes = { hidden = 4 }\ntensors = { '' = [ 'a: hidden/0' ] }",
           "'a': the block size '0' must be a number above zero."},
      })
    expect_refused(ErrorKind::usage, words, [&] { make_names(map); });
}

TEST(MapRefusals, OfAFactThatIsNoInteger) {
  expect_refused(ErrorKind::source,
                 "facts: 'half' is 2.5, and the size 'hidden' is made of it (half): an integer",
                 [] { make_names("axes = { hidden = 'half' }"); });
}

TEST(MapRefusals, OfNames) {
  std::string const head =
      "let = { L = 2, M = 0 }\naxes = { hidden = 4, layer = 2 }\n"
      "tensors = { '' = [ 'a: layer hidden' ] }\n";
  for (
      auto const& [map, words] : std::vector<Case>{
          {"stored = { 'x.{layer' = 'a: hidden' }",
           "'x.{layer': the field that opens at column 3 is not closed with '}'."},
          {"stored = { '{layer}.{list}' = 'a: hidden' }",
           "the field 'list' of a name is [1], a number or a string is needed."},
          {"names = { n = '{n}' }\nstored = { '{layer}.{n}' = 'a: hidden' }",
           "macros nested deeper than"},
          {"names = { n = [ { when = '0', text = 'x' } ] }\nstored = { '{layer}.{n}' = 'a: hidden' }",
           "no alternative of the name 'n' applies here. Add a last alternative without a condition."},
          {"stored = { '{layer}' = { is = 'a: hidden', at = 'X' } }",
           "at = \"X\" is not a place. Known: E, L, m, or decoder=NUMBER."},
          {"stored = { '{layer}' = { is = 'a: hidden', cast = 'FP8' } }",
           "cast = \"FP8\" is not a dtype. Use the names of safetensors: F32, BF16"},
          {"rules = { tp = [ { axis = 'hidden', pad = '0' } ] }\nstored = { '{layer}' = 'a: hidden' }",
           "axis 'hidden' is padded to a multiple of 0; it must be above zero."},
          {"stored = { '{layer}' = { is = 'a: hidden', at = 'tail=1' } }",
           "'tail' is not a place of a pipeline chunk. Known: decoder, mtp."},
      })
    expect_refused(ErrorKind::usage, words, [&] { make_names(head + map); });
}

TEST(MapRefusals, OfEndingsOfParts) {
  MapFile const map = parse_map_file(
      "let = { L = 2, M = 0 }\naxes = { hidden = 4 }\ntensors = { '' = [ 'f.g: hidden', 'f.u: hidden' ] }\n"
      "stored = { 'x' = { is = 'f: (g: hidden | u: hidden)', apart = { when = '1', as = ['_v'] } } }",
      "m.toml");
  Model const model(map, map, {parse_json("{}", "facts"), "facts", 0});
  expect_refused(ErrorKind::usage, "apart: 1 endings for 2 alternatives. Give one ending for each.",
                 [&] { Side(model, map, {}); });
}

TEST(MapRefusals, OfSizesWithoutEnd) {
  expect_refused(
      ErrorKind::usage,
      "names count axis 'layer', which has 2000000 indices; at most 1048576 are allowed. Check the sizes in facts.",
      [] {
        make_names(
            "axes = { hidden = 4, layer = 2000000 }\ntensors = { '' = [ 'a: layer hidden' ] }\n"
            "stored = { '{layer}' = 'a: hidden' }");
      });
  std::string map = "let = { x0 = '1'";
  for (int i = 1; i < 300; ++i) map += fmt::format(", x{} = 'x{}'", 300 - i, 299 - i);
  expect_refused(ErrorKind::usage, "other definitions, one inside the other.",
                 [&] { make_names(map + " }"); });
}

TEST(MapRefusals, OfPlainTensors) {
  std::vector<PlainTensor> const twice = {{"w", {2}}, {"w", {3}}};
  expect_refused(ErrorKind::source, "the folder: 'w' appears twice. Remove one of them.",
                 [&] { Model(twice, "the folder"); });
}

}  // namespace
}  // namespace reshard
