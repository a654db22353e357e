//! Finds the expressions and match arms of a source file that mutants can change.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use syn::visit::{self, Visit};

/// The genre (kind) of mutants in which a checked call is deleted. cargo-mutants does not create
/// such mutants.
pub(crate) const CALL: &str = "Call";

/// An operator with its operands.
pub(crate) struct Operator {
    pub(crate) whole: Range<usize>,
    pub(crate) sign: Range<usize>,
}

/// An arm of a match.
pub(crate) struct Arm {
    /// The pattern without its guard.
    pub(crate) pattern: Range<usize>,
    pub(crate) guard: Option<Range<usize>>,
    /// The expression after `match`, at which the compiler reports a missing case.
    pub(crate) matched: Range<usize>,
}

/// The places in a file that mutants can change.
#[derive(Default)]
pub(crate) struct Places {
    /// The operators, by the position of their first byte.
    pub(crate) operators: HashMap<usize, Operator>,
    /// The positions of the `&&` operators in let chains, such as `a && let Some(b) = c`. No other
    /// operator is valid there.
    pub(crate) joints: HashSet<usize>,
    /// The match arms, by the position of their first byte.
    pub(crate) arms: HashMap<usize, Arm>,
    /// The guards of match arms, by the position of their first byte.
    pub(crate) guards: HashMap<usize, Range<usize>>,
    /// The statements `call()?;`, which discard the result of a call and return its error.
    pub(crate) calls: Vec<Range<usize>>,
    /// Code that is evaluated at compile time, where no switch can be read.
    pub(crate) constant: Vec<Range<usize>>,
}

impl Places {
    /// Finds the places that mutants can change in the source of a file.
    ///
    /// # Errors
    /// Fails if the source is not Rust.
    pub(crate) fn of(source: &str) -> Result<Self, String> {
        let mut places = Self::default();
        let file = syn::parse_file(source).map_err(|error| error.to_string())?;
        places.visit_file(&file);
        Ok(places)
    }

    fn operator(&mut self, whole: &impl Spanned, sign: &impl Spanned) {
        let (whole, sign) = (whole.bytes(), sign.bytes());
        self.operators.insert(sign.start, Operator { whole, sign });
    }
}

trait Spanned {
    fn bytes(&self) -> Range<usize>;
}

impl<T: syn::spanned::Spanned> Spanned for T {
    fn bytes(&self) -> Range<usize> {
        self.span().byte_range()
    }
}

/// Whether a condition binds variables by `let`. Such a condition cannot be put in parentheses.
fn binds(expression: &syn::Expr) -> bool {
    match expression {
        syn::Expr::Let(_) => true,
        syn::Expr::Binary(binary) => binds(&binary.left) || binds(&binary.right),
        _ => false,
    }
}

/// Whether the statement is `call()?;`.
fn is_checked_call(statement: &syn::Stmt) -> bool {
    let syn::Stmt::Expr(syn::Expr::Try(checked), Some(_)) = statement else {
        return false;
    };
    matches!(
        &*checked.expr,
        syn::Expr::MethodCall(_) | syn::Expr::Call(_)
    )
}

impl<'ast> Visit<'ast> for Places {
    fn visit_item(&mut self, node: &'ast syn::Item) {
        let attributes = match node {
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Mod(item) => &item.attrs,
            _ => &Vec::new(),
        };
        // Test code is not mutated.
        if !attributes
            .iter()
            .any(|attribute| attribute.path().is_ident("cfg"))
        {
            visit::visit_item(self, node);
        }
    }

    fn visit_stmt(&mut self, node: &'ast syn::Stmt) {
        if is_checked_call(node) {
            self.calls.push(node.bytes());
        }
        visit::visit_stmt(self, node);
    }

    fn visit_expr_binary(&mut self, node: &'ast syn::ExprBinary) {
        if binds(&node.left) || binds(&node.right) {
            self.joints.insert(node.op.bytes().start);
        } else {
            self.operator(node, &node.op);
        }
        visit::visit_expr_binary(self, node);
    }

    fn visit_expr_unary(&mut self, node: &'ast syn::ExprUnary) {
        self.operator(node, &node.op);
        visit::visit_expr_unary(self, node);
    }

    fn visit_expr_match(&mut self, node: &'ast syn::ExprMatch) {
        for arm in &node.arms {
            let (pattern, guard) = match &arm.pat {
                syn::Pat::Guard(guarded) => (guarded.pat.bytes(), Some(guarded.guard.bytes())),
                pattern => (pattern.bytes(), None),
            };
            if let Some(guard) = &guard {
                self.guards.insert(guard.start, guard.clone());
            }
            let matched = node.expr.bytes();
            let start = arm.bytes().start;
            let arm = Arm {
                pattern,
                guard,
                matched,
            };
            self.arms.insert(start, arm);
        }
        visit::visit_expr_match(self, node);
    }

    fn visit_item_const(&mut self, node: &'ast syn::ItemConst) {
        self.constant.push(node.bytes());
    }

    fn visit_item_static(&mut self, node: &'ast syn::ItemStatic) {
        self.constant.push(node.bytes());
    }

    fn visit_impl_item_const(&mut self, node: &'ast syn::ImplItemConst) {
        self.constant.push(node.bytes());
    }

    fn visit_type_array(&mut self, node: &'ast syn::TypeArray) {
        self.constant.push(node.len.bytes());
    }

    fn visit_expr_repeat(&mut self, node: &'ast syn::ExprRepeat) {
        self.constant.push(node.len.bytes());
        self.visit_expr(&node.expr);
    }

    fn visit_item_fn(&mut self, node: &'ast syn::ItemFn) {
        if node.sig.constness.is_some() {
            self.constant.push(node.bytes());
        }
        visit::visit_item_fn(self, node);
    }

    fn visit_impl_item_fn(&mut self, node: &'ast syn::ImplItemFn) {
        if node.sig.constness.is_some() {
            self.constant.push(node.bytes());
        }
        visit::visit_impl_item_fn(self, node);
    }
}
