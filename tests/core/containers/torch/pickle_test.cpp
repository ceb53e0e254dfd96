#include "core/containers/torch/pickle/pickle.hpp"

#include <cmath>

#include <gtest/gtest.h>

#include "tests/support/torch_file_bytes.hpp"

namespace reshard {
namespace {

using namespace std::literals;
using pickle::Document;
using pickle::Kind;
using pickle::Node;
using pickle::NodeId;

Node const& root(Document const& document) { return document.at(document.root); }

/// A document as text, sharing included: the second sight of a container is its number.
class Show {
 public:
  explicit Show(Document const& document) : document_(document) {}
  std::string operator()(NodeId id) {
    Node const& node = document_.at(id);
    switch (node.kind) {
      case Kind::none: return "None";
      case Kind::boolean: return node.boolean ? "True" : "False";
      case Kind::integer: return std::to_string(node.integer);
      case Kind::big_integer: return fmt::format("big{}", node.text.size());
      case Kind::real: return fmt::format("{}", node.real);
      case Kind::string: return "'" + node.text + "'";
      case Kind::bytes: return "b'" + node.text + "'";
      case Kind::global:
        return fmt::format("{}.{}", document_.class_of(id).first, document_.class_of(id).second);
      case Kind::storage: return "storage:" + document_.storages[node.index].key;
      default: return container(id, node);
    }
  }

 private:
  std::string container(NodeId id, Node const& node) {
    for (std::size_t i = 0; i < seen_.size(); ++i)
      if (seen_[i] == id) return fmt::format("#{}", i);
    seen_.push_back(id);
    if (node.kind == Kind::tensor) return tensor(node);
    if (node.kind == Kind::reduce) {
      // One after the other: numbers of nodes follow the order in which they are seen.
      std::string const arguments = (*this)(node.arguments);
      std::string text = (*this)(node.callable) + (node.new_object ? "!" : "") + arguments;
      if (!node.items.empty()) text += list("[", node.items, "]");
      if (!node.pairs.empty()) text += list("{", node.pairs, "}");
      if (node.state != pickle::no_node) text += "<-" + (*this)(node.state);
      return text;
    }
    char const* const open[] = {"(", "[", "{", "set(", "frozen("};
    char const* const close[] = {")", "]", "}", ")", ")"};
    auto const which = static_cast<std::size_t>(node.kind) - static_cast<std::size_t>(Kind::tuple);
    return list(open[which], node.items, close[which]);
  }
  std::string list(char const* open, std::vector<NodeId> const& ids, char const* close) {
    std::string text = open;
    for (NodeId const id : ids)
      text += (text.size() > std::string_view(open).size() ? " " : "") + (*this)(id);
    return text + close;
  }
  std::string tensor(Node const& node) {
    auto const& tensor = document_.tensors[node.index];
    std::string text = fmt::format("{}{}:{}+{}[{}/{}]", tensor.parameter ? "param:" : "",
                                   name(tensor.dtype), tensor.storage.key, tensor.offset,
                                   fmt::join(tensor.shape, ","), fmt::join(tensor.strides, ","));
    return node.state == pickle::no_node ? text : text + "<-" + (*this)(node.state);
  }

  Document const& document_;
  std::vector<NodeId> seen_;
};

std::string shown(Document const& document) { return Show(document)(document.root); }

/// Parsed, dumped, parsed: nothing is lost, and a second dump is the same.
std::string round_trip(std::string_view bytes) {
  Document const first = parse(bytes);
  std::string const dumped = dump(first);
  Document const second = parse(dumped);
  EXPECT_EQ(shown(second), shown(first));
  EXPECT_EQ(dump(second), dumped);
  return shown(first);
}

TEST(PickleParse, ReadsEveryScalarOpcode) {
  EXPECT_EQ(round_trip("N."), "None");
  EXPECT_EQ(round_trip("\x88."), "True");
  EXPECT_EQ(round_trip("\x89."), "False");
  EXPECT_EQ(round_trip("I01\n."), "True");
  EXPECT_EQ(round_trip("I00\n."), "False");
  EXPECT_EQ(round_trip("I-12\n."), "-12");
  EXPECT_EQ(round_trip("K\xff."), "255");
  EXPECT_EQ(round_trip("M\xff\xff."), "65535");
  EXPECT_EQ(round_trip("J\xff\xff\xff\xff."), "-1");
  EXPECT_EQ(round_trip("\x8a\0."s), "0");
  EXPECT_EQ(round_trip("\x8a\x01\x80."), "-128");
  EXPECT_EQ(round_trip("\x8a\x09\xff\xff\xff\xff\xff\xff\xff\x7f\0."s), "9223372036854775807");
  EXPECT_EQ(round_trip("\x8a\x09\0\0\0\0\0\0\0\x80\0."s), "big9");
  EXPECT_EQ(round_trip("\x8b\x02\0\0\0\x39\x05."s), "1337");
  EXPECT_EQ(round_trip("L-9223372036854775808L\n."), "-9223372036854775808");
  EXPECT_EQ(round_trip("L18446744073709551616L\n."), "big9");
  EXPECT_EQ(round_trip("F1.5\n."), "1.5");
  EXPECT_EQ(round_trip("F-inf\n."), "-inf");
  EXPECT_EQ(round_trip("G\x3f\xf8\0\0\0\0\0\0."s), "1.5");
}

TEST(PickleParse, ReadsEveryStringOpcode) {
  EXPECT_EQ(round_trip("X\x03\0\0\0a\xc3\xa9."s), "'aé'");
  EXPECT_EQ(round_trip("\x8c\x01z."), "'z'");
  EXPECT_EQ(round_trip("\x8d\x01\0\0\0\0\0\0\0z."s), "'z'");
  EXPECT_EQ(round_trip("Vt\\u00e9\\U0001f600\\u005c\xe9\n."), "'té😀\\é'");
  EXPECT_EQ(round_trip("S'a\\n\\x41\\101\\'\\q'\n."), "'a\nAA'\\q'");
  EXPECT_EQ(round_trip("T\x02\0\0\0hi."s), "'hi'");
  EXPECT_EQ(round_trip("U\x02\xff\x01."), "b'\xff\x01'");  // no UTF-8, so a Python 2 str of bytes
  EXPECT_EQ(round_trip("B\x01\0\0\0\xfe."s), "b'\xfe'");
  EXPECT_EQ(round_trip("C\0."s), "b''");
  EXPECT_EQ(round_trip("\x8e\x01\0\0\0\0\0\0\0q."s), "b'q'");
  EXPECT_EQ(round_trip("\x96\x01\0\0\0\0\0\0\0q."s), "__builtin__.bytearray(b'q')");
}

TEST(PickleParse, ReadsEveryContainerOpcode) {
  EXPECT_EQ(round_trip(")."), "()");
  EXPECT_EQ(round_trip("N\x85."), "(None)");
  EXPECT_EQ(round_trip("NK\x01\x86."), "(None 1)");
  EXPECT_EQ(round_trip("K\x01K\x02K\x03\x87."), "(1 2 3)");
  EXPECT_EQ(round_trip("(K\x01K\x02K\x03K\x04t."), "(1 2 3 4)");
  EXPECT_EQ(round_trip("](K\x01K\x02"
                       "eNa."),
            "[1 2 None]");
  EXPECT_EQ(round_trip("(K\x01K\x02l."), "[1 2]");
  EXPECT_EQ(round_trip("}K\x01K\x02s."), "{1 2}");
  EXPECT_EQ(round_trip("(K\x01K\x02"
                       "d."),
            "{1 2}");
  EXPECT_EQ(round_trip("}(K\x01K\x02K\x03K\x04u."), "{1 2 3 4}");
  EXPECT_EQ(round_trip("\x8f(K\x01K\x02\x90."), "set(1 2)");
  EXPECT_EQ(round_trip("(K\x01\x91."), "frozen(1)");
  EXPECT_EQ(round_trip("c__builtin__\nset\n](K\x01K\x02"
                       "e\x85R."),
            "set(1 2)");
  EXPECT_EQ(round_trip("cbuiltins\nfrozenset\n]\x85R."), "frozen()");
  EXPECT_EQ(round_trip("c__builtin__\ndict\n)R(K\x01K\x02u."), "{1 2}");
  EXPECT_EQ(round_trip("c__builtin__\nbytes\n)R."), "b''");
}

TEST(PickleParse, ReadsStackAndMemoOpcodes) {
  EXPECT_EQ(round_trip("]2\x86."), "([] #1)");
  EXPECT_EQ(round_trip("](N1."), "[]");
  EXPECT_EQ(round_trip("]N0."), "[]");
  EXPECT_EQ(round_trip("](0."), "[]");
  EXPECT_EQ(round_trip("]q\x05h\x05\x86."), "([] #1)");
  EXPECT_EQ(round_trip("]r\x05\0\1\0j\x05\0\1\0\x86."s), "([] #1)");
  EXPECT_EQ(round_trip("]p12\ng12\n\x86."), "([] #1)");
  EXPECT_EQ(round_trip("\x80\x04\x95\x05\0\0\0\0\0\0\0]\x94h\0\x86."s), "([] #1)");
}

TEST(PickleParse, KeepsCallsAsInertObjects) {
  EXPECT_EQ(round_trip("cos\nsystem\nX\x02\0\0\0ls\x85R."s), "os.system('ls')");
  EXPECT_EQ(round_trip("\x8c\x02os\x8c\x06system\x93N\x85R."), "os.system(None)");
  EXPECT_EQ(round_trip("cargparse\nNamespace\n)\x81}X\x01\0\0\0xK\x01sb."s),
            "argparse.Namespace!()<-{'x' 1}");
  EXPECT_EQ(round_trip("ccollections\nOrderedDict\n)R(K\x01K\x02K\x03K\x04u}K\x05K\x06sb."),
            "collections.OrderedDict(){1 2 3 4}<-{5 6}");
  EXPECT_EQ(round_trip("cm\nC\n)\x81(K\x01K\x02"
                       "e."),
            "m.C!()[1 2]");
  EXPECT_EQ(round_trip("cm\nf\n)R)R."), "m.f()()");
  EXPECT_EQ(round_trip("cm\nC\n)}\x92."), "m.C!()");
  EXPECT_EQ(round_trip("ctorch\nSize\nK\x01K\x02\x86\x85R."), "torch.Size((1 2))");
}

TEST(PickleParse, WritesKeywordArgumentsAsAPartial) {
  EXPECT_EQ(round_trip("cm\nC\nK\x07\x85}X\x01\0\0\0kK\x01s\x92."s),
            "functools.partial(__builtin__.getattr(m.C '__new__'))<-(#4 (m.C 7) {'k' 1} None)()");
}

TEST(PickleParse, NamesWithADotAreReadAndNeverWritten) {
  Document const document = parse("\x8c\1m\x8c\x0bOuter.Inner\x93.");
  EXPECT_EQ(document.class_of(document.root), std::pair("m"sv, "Outer.Inner"sv));
  try {
    dump(document);
    FAIL() << "it was written";
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::source);
    EXPECT_NE(error.sentence().find("'Outer.Inner' of module 'm'"), std::string::npos)
        << error.what();
  }
}

TEST(PickleParse, RecognisesTensors) {
  EXPECT_EQ(round_trip(pickle_of(pickled_tensor({}))), "F32:0+0[2,2/2,1]");
  EXPECT_EQ(
      round_trip(pickle_of(pickled_tensor(
          {.storage_class = "torch\nBFloat16Storage", .offset = 1, .shape = {3}, .strides = {1}}))),
      "BF16:0+1[3/1]");
  EXPECT_EQ(round_trip(pickle_of(pickled_tensor({.shape = {}, .strides = {}}))), "F32:0+0[/]");
  std::string const hooks = "ccollections\nOrderedDict\n)R";
  EXPECT_EQ(round_trip(pickle_of(
                pickled_tensor({.storage_class = "torch.storage\nUntypedStorage",
                                .function = "torch._utils\n_rebuild_tensor_v3",
                                .last_arguments = "\x88" + hooks + "ctorch\nfloat8_e4m3fn\n"}))),
            "F8_E4M3:0+0[2,2/2,1]");
  EXPECT_EQ(shown(parse(pickle_of(pickled_tensor(
                {.function = "torch._utils\n_rebuild_tensor", .last_arguments = ""})))),
            "F32:0+0[2,2/2,1]");
  EXPECT_EQ(round_trip(pickle_of("ctorch._utils\n_rebuild_parameter\n" + pickled_tensor({}) +
                                 "\x88" + hooks + "\x87R")),
            "param:F32:0+0[2,2/2,1]");
  EXPECT_EQ(round_trip(pickle_of("ctorch._utils\n_rebuild_parameter_with_state\n(" +
                                 pickled_tensor({}) + "\x88" + hooks + "}K\x01K\x02stR")),
            "param:F32:0+0[2,2/2,1]<-{1 2}");
}

TEST(PickleParse, AParameterIsOneTensorNotTwo) {
  Document const document =
      parse(pickle_of("ctorch._utils\n_rebuild_parameter\n" + pickled_tensor({}) +
                      "\x89"
                      "ccollections\nOrderedDict\n)R\x87R"));
  ASSERT_EQ(document.tensors.size(), 1U);
  EXPECT_TRUE(document.tensors[0].parameter);
  EXPECT_FALSE(document.tensors[0].requires_grad);
}

TEST(PickleParse, LeavesConjugatedTensorsOpaque) {
  std::string const hooks = "ccollections\nOrderedDict\n)R";
  Document const document = parse(
      pickle_of(pickled_tensor({.last_arguments = "\x89" + hooks + "}X\x04\0\0\0conj\x88s"s})));
  EXPECT_EQ(root(document).kind, Kind::reduce);
  EXPECT_TRUE(document.tensors.empty());
}

TEST(PickleParse, SaysWhereThePickleEnded) {
  std::size_t consumed = 0;
  std::string_view const bytes = "K\x01.garbage";
  pickle::parse(std::as_bytes(std::span(bytes)), "test", &consumed);
  EXPECT_EQ(consumed, 3U);
}

TEST(PickleDump, KeepsSharing) {
  Document document;
  NodeId const shared = document.add_list({document.add_int(1)});
  NodeId const bytes = document.add_bytes("\xff\x00z"s);
  document.root = document.add_tuple({shared, bytes, shared, bytes, document.add_tuple({shared})});
  EXPECT_EQ(shown(parse(dump(document))), "([1] b'\xff\0z' #1 b'\xff\0z' (#1))"s);
  Document const parsed = parse(dump(document));
  EXPECT_EQ(root(parsed).items[1], root(parsed).items[3]);
}

TEST(PickleDump, WritesSelfReferences) {
  EXPECT_EQ(round_trip("]q\0h\0a."s), "[#0]");
  EXPECT_EQ(round_trip("}q\0K\x01h\0s."s), "{1 #0}");
  EXPECT_EQ(round_trip("cm\nC\n)\x81q\0}K\x01h\0sb."s), "m.C!()<-{1 #0}");
  // A tuple in a list in that tuple.
  EXPECT_EQ(round_trip("]q\0h\0\x85q\1a0h\1."s), "([#0])");
  EXPECT_EQ(round_trip("]q\0(h\0K\1K\2K\3tq\1a0h\1."s), "([#0] 1 2 3)");
  // An object whose argument is a list with the object.
  EXPECT_EQ(round_trip("]q\0cm\nC\nh\0\x85Rq\1a0h\1."s), "m.C([#0])");
}

TEST(PickleDump, RefusesWhatNoPickleCanExpress) {
  Document document;
  NodeId const tuple = document.add_tuple();
  document.at(tuple).items = {tuple, tuple};
  document.root = tuple;
  EXPECT_THROW(dump(document), Error);
  Document set;
  set.root = set.add({.kind = Kind::set});
  set.at(set.root).items = {set.root};
  EXPECT_THROW(dump(set), Error);
}

TEST(PickleDump, SplitsLongContainersIntoBatchesAsPythonDoes) {
  Document document;
  std::vector<NodeId> items;
  for (int i = 0; i < 2001; ++i) items.push_back(document.add_int(i));
  document.root = document.add_list(items);
  std::string const bytes = dump(document);
  Document const parsed = parse(bytes);
  EXPECT_EQ(root(parsed).items.size(), 2001U);
  EXPECT_EQ(parsed.at(root(parsed).items[2000]).integer, 2000);
}

TEST(PickleDump, AMemoBombCostsNothing) {
  Document document;
  NodeId node = document.add_list();
  for (int i = 0; i < 900; ++i) node = document.add_list({node, node});
  document.root = node;
  std::string const bytes = dump(document);
  EXPECT_LT(bytes.size(), 20000U);
  Document const parsed = parse(bytes);
  Document copy;
  copy.root = copy.add_copy(parsed, parsed.root);
  EXPECT_EQ(copy.nodes.size(), 901U);
  EXPECT_EQ(dump(copy), bytes);
}

TEST(Document, FindsSetsAndErasesKeysOfDictsOrderedDictsAndObjects) {
  Document document;
  NodeId const dict = document.add_dict();
  NodeId const ordered =
      document.add({.kind = Kind::reduce,
                    .callable = document.add_global("collections", "OrderedDict"),
                    .arguments = document.add_tuple()});
  NodeId const object = document.add_object("argparse", "Namespace", document.add_dict());
  NodeId const bare = document.add_object("argparse", "Namespace", pickle::no_node);
  for (NodeId const node : {dict, ordered, object, bare}) {
    EXPECT_EQ(document.find(node, "a"), pickle::no_node);
    document.set(node, "a", document.add_int(1));
    document.set(node, "b", document.add_int(2));
    document.set(node, "a", document.add_int(3));
    ASSERT_NE(document.find(node, "a"), pickle::no_node);
    EXPECT_EQ(document.at(document.find(node, "a")).integer, 3);
    auto const members = document.members(node);
    ASSERT_EQ(members.size(), 2U);
    EXPECT_EQ(members[0].first, "a");
    EXPECT_EQ(members[1].first, "b");
    EXPECT_TRUE(document.erase(node, "a"));
    EXPECT_FALSE(document.erase(node, "a"));
    EXPECT_EQ(document.members(node).size(), 1U);
  }
  EXPECT_EQ(document.find(document.add_int(1), "a"), pickle::no_node);
  EXPECT_EQ(document.find(pickle::no_node, "a"), pickle::no_node);
  EXPECT_THROW(document.set(document.add_int(1), "a", dict), Error);
}

TEST(Document, TheLastOfTwoEqualKeysCounts) {
  Document document = parse("}(X\1\0\0\0aK\1X\1\0\0\0bK\2X\1\0\0\0aK\3u."s);
  EXPECT_EQ(document.at(document.find(document.root, "a")).integer, 3);
  ASSERT_EQ(document.members(document.root).size(), 2U);
  EXPECT_EQ(document.at(document.members(document.root)[0].second).integer, 3);
  EXPECT_TRUE(document.erase(document.root, "a"));
  EXPECT_EQ(document.members(document.root).size(), 1U);
}

TEST(Document, NamesTheClassOfObjects) {
  using Names = std::pair<std::string_view, std::string_view>;
  Document const object = parse("cargparse\nNamespace\n)\x81.");
  EXPECT_EQ(object.class_of(object.root), Names("argparse", "Namespace"));
  Document const old = parse("ccopy_reg\n_reconstructor\n(cm\nC\nc__builtin__\nobject\nNtR.");
  EXPECT_EQ(old.class_of(old.root), Names("m", "C"));
  Document const dtype = parse("ctorch\nbfloat16\n.");
  EXPECT_EQ(dtype.class_of(dtype.root), Names("torch", "bfloat16"));
  EXPECT_EQ(parse("N.").class_of(0), Names());
}

TEST(Document, CopiesKeepSharingCyclesAndStorageKeys) {
  Document const from = parse(pickle_of("]q\0h\0a"s + pickled_tensor({.key = "17"}) + "q\1ah\1a"));
  Document to;
  to.add_tensor(DType::f32, {1});
  to.root = to.add_copy(from, from.root);
  EXPECT_EQ(shown(to), shown(from));
  ASSERT_EQ(to.tensors.size(), 2U);
  EXPECT_EQ(to.tensors[1].storage.key, "17");
}

TEST(Document, AddsTensorsOverTheirOwnStorage) {
  Document document;
  document.root = document.add_list({document.add_tensor(DType::bf16, {2, 0, 3}),
                                     document.add_tensor(DType::f8_e4m3, {}),
                                     document.add_tensor(DType::u16, {5})});
  EXPECT_EQ(round_trip(dump(document)), "[BF16:0+0[2,0,3/3,3,1] F8_E4M3:1+0[/] U16:2+0[5/1]]");
  EXPECT_EQ(document.tensors[0].storage.count, 0U);
  EXPECT_EQ(document.tensors[1].storage.count, 1U);
  EXPECT_EQ(document.tensors[2].storage.count, 10U);
  EXPECT_TRUE(document.tensors[2].storage.untyped);
  EXPECT_THROW(document.add_tensor(DType::f4, {2}), Error);
}

}  // namespace
}  // namespace reshard
